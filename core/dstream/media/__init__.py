"""Video: finding packets in files, planning which bytes a clip needs, decoding them."""
