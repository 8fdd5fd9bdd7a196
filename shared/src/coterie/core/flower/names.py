"""What the files of a deployment are called. Torch-free."""

SERVER, CLIENTS, PUBLIC, TRIAL = "server", "clients", "public", "trial"
"""Folders of a deployment: the server's; the clients' of a data set that was taken apart; files
that everybody needs; a trial on this machine."""
SETTINGS, KEYS, RUN, STATUS, RUNS = (
    "config.yaml",
    "keys.json",
    "run.json",
    "status.json",
    "runs",
)
"""In the server's folder: the run's settings; name of a clients' folder -> public key of its node;
which run it is; how it goes; the folders of its runs."""
VARIABLE = "COTERIE_SERVER"
"""Names the server's folder to the ServerApps of a SuperLink."""
