package v2

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
)

// Artifacts keeps files that attempts leave.
type Artifacts interface {
	PutArtifact(ctx context.Context, key fulgur.AttemptKey, name, reader string, body io.Reader, most int64) (fulgur.Artifact, bool, error)
	Artifacts(ctx context.Context, key fulgur.AttemptKey) ([]fulgur.Artifact, error)
	Artifact(ctx context.Context, key fulgur.AttemptKey, name string) (fulgur.Artifact, io.ReadCloser, error)
	MayReadArtifact(ctx context.Context, key fulgur.AttemptKey, name, secret string) bool
	DeleteArtifact(ctx context.Context, key fulgur.AttemptKey, name string) error
}

const (
	artifactsPath = "/rollouts/{id}/attempts/{attempt}/artifacts"
	artifactPath  = artifactsPath + "/{name}"
	readArtifact  = "GET " + Prefix + artifactPath // it looks at secrets itself
	putArtifact   = "PUT " + Prefix + artifactPath
)

// ArtifactIn names an artifact.
type ArtifactIn struct {
	AttemptIn
	Name string `path:"name"`
}

// artifactRoutes are served without the framework, which would hold a body in
// memory; it describes them.
func (s *server) artifactRoutes(mux *http.ServeMux) {
	register(s, op("GET", artifactsPath, "List what an attempt has left"), func(ctx context.Context, in *AttemptIn) ([]fulgur.Artifact, error) {
		return list(s.Store.Artifacts(ctx, fulgur.AttemptKey{Rollout: in.ID, Attempt: in.Attempt}))
	})
	register(s, op("DELETE", artifactPath, "Remove an artifact; nothing there is no error"), func(ctx context.Context, in *ArtifactIn) (none, error) {
		return none{}, s.Store.DeleteArtifact(ctx, fulgur.AttemptKey{Rollout: in.ID, Attempt: in.Attempt}, in.Name)
	})
	str := &huma.Schema{Type: huma.TypeString}
	bytes := map[string]*huma.MediaType{"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}
	made := map[string]*huma.MediaType{"application/json": {Schema: s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[fulgur.Artifact](), true, "Artifact")}}
	named := func(o *huma.Operation) {
		for _, name := range []string{"id", "attempt", "name"} {
			o.Parameters = append(o.Parameters, &huma.Param{Name: name, In: "path", Required: true, Schema: str})
		}
		problem := &huma.Response{Description: "A problem", Content: map[string]*huma.MediaType{"application/problem+json": {Schema: s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[huma.ErrorModel](), true, "ErrorModel")}}}
		o.Responses["default"] = problem
	}
	put := op("PUT", artifactPath, "Leave a file, once; the attempt's own credential will do", func(o *huma.Operation) {
		o.Description = fmt.Sprintf("While the attempt has not ended. With its own credential an attempt's artifacts have at most %d bytes together, with what is coming in, of which there may be two at a time: try again (503). The same bytes again are a retry (200).", max(0, s.MaxArtifact))
		o.RequestBody = &huma.RequestBody{Required: true, Content: bytes}
		o.Parameters = []*huma.Param{{Name: readerHeader, In: "header", Description: "with the server key: a secret that may read this artifact, and nothing else", Schema: str}}
		o.Responses = map[string]*huma.Response{"200": {Description: "It is there already", Content: made}, "201": {Description: "Created", Content: made}}
	}, named)
	get := op("GET", artifactPath, "Read a file; the secret that it was left with will do", func(o *huma.Operation) {
		o.Responses = map[string]*huma.Response{"200": {Description: "OK", Content: bytes}}
	}, named)
	s.api.OpenAPI().AddOperation(&put)
	s.api.OpenAPI().AddOperation(&get)
	mux.HandleFunc(putArtifact, s.putArtifact)
	mux.HandleFunc(readArtifact, s.getArtifact)
}

// readerHeader has a secret that may read what is put.
const readerHeader = "Fulgur-Reader"

func artifactOf(r *http.Request) (fulgur.AttemptKey, string) {
	return fulgur.AttemptKey{Rollout: fulgur.RolloutID(r.PathValue("id")), Attempt: fulgur.AttemptID(r.PathValue("attempt"))}, r.PathValue("name")
}

func (s *server) putArtifact(w http.ResponseWriter, r *http.Request) {
	key, name := artifactOf(r)
	id, _ := r.Context().Value(identityKey{}).(fulgur.Identity)
	reader, most := r.Header.Get(readerHeader), s.MaxArtifact
	switch {
	case id.Scope == fulgur.ScopeServer:
		most = math.MaxInt64
	case id.Rollout != key.Rollout || id.Attempt != key.Attempt:
		writeProblem(w, fulgur.E(fulgur.KindForbidden, "", "this credential is good for the artifacts of its own attempt only", nil))
		return
	case reader != "":
		writeProblem(w, fulgur.E(fulgur.KindForbidden, "", "the server key alone lets others read an artifact", nil))
		return
	}
	a, created, err := s.Store.PutArtifact(r.Context(), key, name, reader, r.Body, most)
	if err != nil {
		writeProblem(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if created {
		w.WriteHeader(http.StatusCreated)
	}
	_, _ = w.Write(marshal(a)) // the reader may have left
}

func (s *server) getArtifact(w http.ResponseWriter, r *http.Request) {
	key, name := artifactOf(r)
	id, err := api.Identify(r, s.Store)
	if err != nil || id.Scope != fulgur.ScopeServer {
		if err == nil {
			err = fulgur.E(fulgur.KindForbidden, "", "this needs the server key, or the secret that the artifact was left with", nil)
		}
		secret, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if secret == "" || !s.Store.MayReadArtifact(r.Context(), key, name, secret) {
			writeProblem(w, err)
			return
		}
	}
	a, body, err := s.Store.Artifact(r.Context(), key, name)
	if err != nil {
		writeProblem(w, err)
		return
	}
	defer func() { _ = body.Close() }()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // not every writer has one
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.FormatInt(a.Size, 10))
	h.Set("ETag", `"`+a.SHA256+`"`)
	if _, err := io.Copy(w, body); err != nil {
		panic(http.ErrAbortHandler) // the client is not to take what came for all of it
	}
}
