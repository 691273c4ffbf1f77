"""Running on the device: `runner` turns a plan into a forward with sampling behind it; `capacity` says what fits."""
