"""What belongs to this process: cores, threads, files and folders of its own, the environment's variables."""
