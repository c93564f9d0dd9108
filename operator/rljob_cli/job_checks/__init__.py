"""What is checked of a job before anything is started: its files and names, the server, the output folder."""
