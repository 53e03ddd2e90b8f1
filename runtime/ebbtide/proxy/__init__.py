"""`ebbtide proxy`: for clients that know nothing of tokens, leases and epochs.

holder    the group's lease: taken when it is first needed, renewed, given back
sight     the group as it is measured, before and after every verb
mover     lend, wake, pause, resume: one at a time, done when measured
updates   weights from a folder, and what clients call their version
engines   requests for an engine, to a member that serves
vllm, sglang, refused    other engines' paths: what they become here, or why they cannot be
shims     the one table of those paths
server    everything else goes to the gateway as it came, with what it lacks
"""
