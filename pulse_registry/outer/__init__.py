"""The outer optimizer: trainers anywhere train one policy in rounds, through the bucket."""
