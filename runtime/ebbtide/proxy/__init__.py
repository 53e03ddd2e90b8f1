"""`ebbtide proxy`: for clients that know nothing of tokens, leases and epochs.

holder   the group's lease: taken when it is first needed, renewed, given back
shims    vLLM's own paths for sleeping, which become a borrow and its end
server   everything else goes to the gateway as it came, with what it lacks
"""
