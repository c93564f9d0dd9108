"""`rljob ui`: a live page of one or more runs, served on the loopback interface.

| part | does |
|---|---|
| `documents` | what a run has told, as JSON documents for the page's views; no clock and no I/O |
| `files`, `streams`, `auditing` | read a run: its files, streams, and what an audit finds; they write nothing there |
| `kept_answers` | a run's samples, page by page |
| `page_run`, `catalog` | one run with its documents; all runs that the page was given |
| `server`, `access`, `command` | serve documents and the files in `static` to who has the token |
"""
