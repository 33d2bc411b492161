"""Model files: our own model.pt, and folders and files of other families."""
