"""What the calibrated release is compared with: decoders that never touch the secret, no protection, and PMixED."""
