package wire

// SDKVersion is the version of the official SDK whose wire is spoken: servers
// ask for one.
const SDKVersion = "0.25.0"

// ConfigRequest is the body of POST client/config and of client/dynamic_config.
type ConfigRequest struct {
	SDKVersion string `json:"sdk_version"`
}

// Config is the answer of client/config: what concerns sampling.
type Config struct {
	ExchangeKeys bool `json:"pjwt_auth_enabled"` // keys are exchanged at auth/token first
}

// DynamicConfig is the answer of client/dynamic_config.
type DynamicConfig struct {
	CancelSamples bool `json:"sample_cancel_enabled"` // cancel_future is offered
}

// SessionRequest is the body of POST create_session.
type SessionRequest struct {
	Type         string            `json:"type"` // "create_session"
	Tags         []string          `json:"tags"`
	UserMetadata map[string]string `json:"user_metadata"`
	SDKVersion   string            `json:"sdk_version"`
}

// Session is its answer.
type Session struct {
	ID      string `json:"session_id"`
	Error   string `json:"error_message"`
	Warning string `json:"warning_message"`
}

// Heartbeat is the body of POST session_heartbeat.
type Heartbeat struct {
	Type      string `json:"type"` // "session_heartbeat"
	SessionID string `json:"session_id"`
}

// SamplingSessionRequest is the body of POST create_sampling_session: exactly
// one of the last two is set.
type SamplingSessionRequest struct {
	Type      string `json:"type"` // "create_sampling_session"
	SessionID string `json:"session_id"`
	SeqID     int64  `json:"sampling_session_seq_id"`
	BaseModel string `json:"base_model,omitempty"`
	ModelPath string `json:"model_path,omitempty"` // "tinker://…" of a sampler save
}

// SamplingSession is its answer.
type SamplingSession struct {
	ID string `json:"sampling_session_id"`
}

// Submitted is the immediate answer to a request whose result is a future.
type Submitted struct {
	RequestID string `json:"request_id"`
}

// RetrieveRequest is the body of POST retrieve_future.
type RetrieveRequest struct {
	RequestID string `json:"request_id"`
	// AllowMetadataOnly takes the result's size in place of a big result.
	AllowMetadataOnly bool `json:"allow_metadata_only"`
}

// CancelRequest is the body of POST cancel_future.
type CancelRequest struct {
	Type      string `json:"type"` // "cancel_future"
	RequestID string `json:"request_id"`
}

// Capabilities is the answer of GET get_server_capabilities.
type Capabilities struct {
	Models []struct {
		Name          string `json:"model_name"`
		ContextLength int    `json:"max_context_length"`
	} `json:"supported_models"`
}
