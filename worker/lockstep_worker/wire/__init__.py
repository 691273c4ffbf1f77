"""What travels between the frontend and the ranks: `messages`, and the sampling `params` in them."""
