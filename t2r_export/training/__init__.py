"""Teaching a converted model what its teacher knows."""
