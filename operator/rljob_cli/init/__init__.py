"""`rljob init`: a commented manifest to begin with."""
