package tinker_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/enginetest"
	"github.com/fulgur-rl/fulgur/internal/engine/tinker"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/tokens"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wires are the two forms of results.
var wires = map[string]bool{"protobuf": false, "json": true}

func TestGenerator(t *testing.T) {
	for name, json := range wires {
		t.Run(name, func(t *testing.T) {
			enginetest.RunGenerator(t, func(t *testing.T) (engine.Generator, engine.Info) {
				const vocab, context = 50, 80
				f := newFake(dice{vocab})
				f.json = json
				c, url := f.start(t, tinker.Options{VocabSize: vocab, ContextLength: context})
				return open(t, c, url), engine.Info{VocabSize: vocab, ContextLength: context}
			})
		})
	}
}

// A gateway's token sampler over it makes the same records as over a generator
// in process.
func TestSampler(t *testing.T) {
	for name, json := range wires {
		t.Run(name, func(t *testing.T) {
			samplertest.RunAtOnce(t, func(t *testing.T, gen *samplertest.Script) (sampler.Sampler, fulgur.Endpoint) {
				f := newFake(gen)
				f.json, f.cancels = json, true
				c, url := f.start(t, tinker.Options{VocabSize: samplertest.VocabSize})
				s := tokens.New(tokens.Options{Renderer: samplertest.Bytes{}, ContextLength: samplertest.ContextLen,
					Protocols: map[string]tokens.Open{tinker.Scheme: c.Generator}})
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
				return s, fulgur.Endpoint{Model: "policy", Kind: fulgur.EndpointTokens, URL: url + "?base_model=tiny", Key: "tml-key"}
			})
		})
	}
}

func TestAddresses(t *testing.T) {
	c := tinker.New(tinker.Options{})
	defer c.Close()
	for url, good := range map[string]bool{
		"tinker+http://h:1":                                         true,
		"tinker+https://h/prefix/api/v1?base_model=a":               true,
		"tinker+https://h?model_path=tinker://m/sampler_weights/s1": true,
		"tinker+https://h?base_model=a&model_path=tinker://m/s1":    false,
		"tinker+https://h?modelpath=tinker://m/s1":                  false,
		"tinker+ftp://h":      false,
		"tinker+http://":      false,
		"tinker+http://h?%zz": false,
	} {
		_, err := c.Generator(fulgur.Endpoint{Model: "m", URL: url})
		if (err == nil) != good || err != nil && fulgur.KindOf(err) != fulgur.KindUpstream {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := c.Generator(fulgur.Endpoint{URL: "tinker+http://h"}); err == nil {
		t.Error("an endpoint without a model was taken")
	}
}
