"""A simulator of whole jobs on virtual time: the real planner, with engines and a trainer that follow profiles.

    scenario   what is simulated: engines, trainer, lengths
    clock      virtual time
    engine     an engine and the rollout worker around it
    trainer    the trainer gang
    link       the link to a site
    ranker     the predictor of lengths
    job        the planner and the roles, whose messages take their time
    report     what a simulated job was like
    timeline   what engines and trainer did over the time
    measured_lengths   lengths of answers as a run had them

It uses nothing but the core, so a simulated job and a real one run the same decisions.
"""

from rljob_sim.job import simulate
from rljob_sim.measured_lengths import AnswerLengths, MeasuredLengths
from rljob_sim.report import SimulationReport
from rljob_sim.scenario import EngineKind, Scenario, TrainerProfile
from rljob_sim.timeline import Timeline

__all__ = [
    "AnswerLengths",
    "EngineKind",
    "MeasuredLengths",
    "Scenario",
    "SimulationReport",
    "Timeline",
    "TrainerProfile",
    "simulate",
]
