"""The Stackelberg game: what players want, what they do, how the follower answers."""
