-- A call's prompt ids and bodies are deltas of those of the call at seq = base; 0: of nothing. NULL: as in schema 1.
ALTER TABLE calls ADD COLUMN base INTEGER;
