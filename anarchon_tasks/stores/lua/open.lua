-- uses: base write
--
-- open: give a cluster its format, and the time of the node that has it. On a single server each script does so.
return reply({})
