"""How a model is split over ranks: `tensor`."""
