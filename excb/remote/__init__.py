"""Everything fetched from elsewhere: downloads, the Hugging Face Hub, object stores, byte ranges."""
