"""Model files: t2r's model.pt, Hugging Face folders, the record of a build."""
