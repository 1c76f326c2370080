-- What an attempt waits for, in phase waiting.
ALTER TABLE attempts ADD COLUMN why TEXT NOT NULL DEFAULT '';
