"""The processes of a trial: forked, watched, ended, and cleaned up after."""
