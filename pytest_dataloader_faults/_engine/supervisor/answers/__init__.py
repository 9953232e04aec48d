"""What the supervisor answers: one module for each kind of call or message [runs in it]."""
