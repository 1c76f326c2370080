package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	listPage = 500
	// resync is how often everything is listed anew, should a watch be silent that
	// ought not to be.
	resync = 5 * time.Minute
	// shortWatch is a watch that ended too soon for all to be well; after maxShort of
	// them in a row what they may have missed is listed.
	shortWatch = 5 * time.Second
	maxShort   = 3
	// watchRetry is the first wait after a watch that failed; it doubles up to watchMost.
	watchRetry = 2500 * time.Millisecond
	watchMost  = 30 * time.Second
)

var errExpired = errors.New("the watch is too old")

// stream follows the objects of one kind: it lists them, watches them from there,
// and lists again when the watch is lost or a resync is due.
type stream[T any] struct {
	c        *client
	path     string
	selector string
	log      *slog.Logger
	// listed gets all that was there at a version; changed gets one object.
	listed  func(all []T, version string)
	changed func(obj T, deleted bool)
}

type list[T any] struct {
	Metadata metav1.ListMeta `json:"metadata"`
	Items    []T             `json:"items"`
}

// run works until ctx ends. version is where a list that somebody else made left
// off; "": there was none.
func (s *stream[T]) run(ctx context.Context, version string) {
	short := 0
	for ctx.Err() == nil {
		if version == "" {
			all, at, err := s.all(ctx)
			if err != nil {
				short++
				s.log.Warn("listing the cluster's objects failed; trying again", "path", s.path, "err", err)
				pause(ctx, backoff(short))
				continue
			}
			s.listed(all, at)
			version = at
		}
		begin := time.Now()
		next, err := s.watch(ctx, version)
		if ctx.Err() != nil {
			return
		}
		version = next
		if time.Since(begin) < shortWatch {
			short++
		} else {
			short = 0
		}
		if err != nil {
			s.log.Warn("watching the cluster failed; listing again", "path", s.path, "err", err)
		}
		if err != nil || short > 0 && short%maxShort == 0 || time.Since(begin) >= resync {
			version = ""
		}
		if short > 0 {
			pause(ctx, backoff(short))
		}
	}
}

// upTo says whether what was seen at version a is in a list of version b. Versions
// are numbers that grow (as Kubernetes says since 1.35, and as it always was).
func upTo(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	return errA == nil && errB == nil && x <= y
}

func backoff(n int) time.Duration {
	d := min(watchRetry<<min(max(n-1, 0), 8), watchMost)
	return d + time.Duration(rand.Int64N(int64(d/4)))
}

// all lists page by page.
func (s *stream[T]) all(ctx context.Context) (items []T, version string, err error) {
	q := url.Values{"labelSelector": {s.selector}, "limit": {strconv.Itoa(listPage)}}
	for {
		var page list[T]
		if err := s.c.persist(ctx, http.MethodGet, s.path, q, nil, &page); err != nil {
			return nil, "", err
		}
		items = append(items, page.Items...)
		if page.Metadata.Continue == "" {
			return items, page.Metadata.ResourceVersion, nil
		}
		q.Set("continue", page.Metadata.Continue)
	}
}

// watch follows changes from a version on. It returns the version that it came to
// and nil when the server ended it in good order.
func (s *stream[T]) watch(ctx context.Context, version string) (string, error) {
	limit := resync + time.Duration(rand.Int64N(int64(time.Minute)))
	ctx, done := context.WithTimeout(ctx, limit+requestLimit)
	defer done()
	q := url.Values{"labelSelector": {s.selector}, "watch": {"true"}, "allowWatchBookmarks": {"true"},
		"resourceVersion": {version}, "timeoutSeconds": {strconv.Itoa(int(limit / time.Second))}}
	resp, err := s.c.send(ctx, http.MethodGet, s.path, q, nil)
	if err != nil {
		if statusOf(err) == http.StatusGone {
			return "", errExpired
		}
		return version, err
	}
	defer func() { _ = resp.Body.Close() }()
	dec := json.NewDecoder(resp.Body)
	for {
		var ev struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if dec.Decode(&ev) != nil {
			return version, nil // its end, in good order or not: the next one goes on from here
		}
		if ev.Type == "ERROR" {
			var st metav1.Status
			_ = json.Unmarshal(ev.Object, &st)
			if st.Code == http.StatusGone {
				return "", errExpired
			}
			return version, fmt.Errorf("the watch was answered with %d: %s", st.Code, st.Message)
		}
		obj := new(T)
		if err := json.Unmarshal(ev.Object, obj); err != nil {
			return version, fmt.Errorf("reading a change: %w", err)
		}
		if ev.Type != "BOOKMARK" {
			s.changed(*obj, ev.Type == "DELETED")
		}
		if m, ok := any(obj).(metav1.Object); ok {
			version = m.GetResourceVersion()
		}
	}
}
