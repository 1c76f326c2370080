CREATE TABLE runs (
	run TEXT PRIMARY KEY, model TEXT NOT NULL, config BYTEA, version BIGINT NOT NULL,
	created BIGINT NOT NULL, updated BIGINT NOT NULL, ended BIGINT, seq BIGINT NOT NULL
);

-- The hot part of a rollout is apart from its input: a change of status rewrites its row.
CREATE TABLE rollouts (
	num BIGINT PRIMARY KEY, rollout TEXT NOT NULL, run TEXT NOT NULL, grp TEXT NOT NULL, is_train BIGINT NOT NULL,
	state TEXT NOT NULL, outcome BYTEA, reward DOUBLE PRECISION, reward_by TEXT NOT NULL, last_attempt TEXT NOT NULL,
	error TEXT NOT NULL, job_name TEXT NOT NULL, version BIGINT NOT NULL, seq BIGINT NOT NULL,
	created BIGINT NOT NULL, updated BIGINT NOT NULL, hidden BIGINT NOT NULL
);
CREATE UNIQUE INDEX rollouts_id ON rollouts (rollout) WHERE hidden = 0;
CREATE INDEX rollouts_run ON rollouts (run, num);
CREATE TABLE inputs (num BIGINT PRIMARY KEY, spec BYTEA NOT NULL, input BYTEA NOT NULL);

CREATE TABLE completions (
	pos BIGINT PRIMARY KEY, num BIGINT NOT NULL, state TEXT NOT NULL, data_id TEXT NOT NULL, is_train BIGINT NOT NULL
);

CREATE TABLE attempts (
	num BIGINT NOT NULL, attempt BIGINT NOT NULL, phase TEXT NOT NULL, runner TEXT NOT NULL, holder TEXT NOT NULL,
	handle TEXT NOT NULL, outcome BYTEA, started BIGINT, ended BIGINT, cred BYTEA NOT NULL,
	PRIMARY KEY (num, attempt)
);
CREATE TABLE credentials (
	sum BYTEA PRIMARY KEY, scope TEXT NOT NULL, num BIGINT NOT NULL, attempt TEXT NOT NULL, created BIGINT NOT NULL
);

CREATE TABLE calls (
	seq BIGINT PRIMARY KEY, call TEXT NOT NULL UNIQUE, num BIGINT NOT NULL, attempt TEXT NOT NULL, idx BIGINT NOT NULL,
	mode TEXT NOT NULL, status BIGINT NOT NULL, fate TEXT NOT NULL, trainable BIGINT NOT NULL,
	started BIGINT NOT NULL, latency BIGINT NOT NULL, meta BYTEA NOT NULL,
	-- Prompt ids and bodies are deltas of those of the call at seq = base; 0: of nothing.
	base BIGINT NOT NULL, prompt_ids BYTEA, sampled_ids BYTEA, log_probs BYTEA, bodies BYTEA NOT NULL
);
-- They are compressed already.
ALTER TABLE calls ALTER bodies SET STORAGE EXTERNAL, ALTER prompt_ids SET STORAGE EXTERNAL;
CREATE INDEX calls_rollout ON calls (num, seq);
CREATE TABLE events (
	seq BIGINT PRIMARY KEY, num BIGINT NOT NULL, attempt TEXT NOT NULL, type TEXT NOT NULL,
	data BYTEA NOT NULL, unused TEXT NOT NULL, at BIGINT NOT NULL
);
CREATE INDEX events_rollout ON events (num, seq);

CREATE TABLE endpoints (
	run TEXT NOT NULL, pos BIGINT NOT NULL, model TEXT NOT NULL, url TEXT NOT NULL, kind TEXT NOT NULL,
	key TEXT NOT NULL, version BIGINT NOT NULL, PRIMARY KEY (run, pos)
);
CREATE TABLE leases (
	run TEXT NOT NULL, name TEXT NOT NULL, holder TEXT NOT NULL, expires BIGINT NOT NULL, PRIMARY KEY (run, name)
);
