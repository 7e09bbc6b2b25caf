-- uses: base
--
-- time: the store's time, and whether its format can be read.
return reply({})
