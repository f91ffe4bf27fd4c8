"""The launcher: starts learners on one machine or several, and outlives their deaths.

A *supervisor* on each node (`supervisor`) starts the node's learners and a helper
process (`store_process`). On node 0 that process keeps the rendezvous store, so that no
learner keeps it; on the other nodes it is a client. None but that process imports
torch. A *watchdog* (`watchdog`) kills everything if the supervisor itself is killed.
"""
