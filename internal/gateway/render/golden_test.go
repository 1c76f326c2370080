package render

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/goldentest"
	"github.com/fulgur-rl/fulgur/internal/jinja"
)

// smolFolder is the model folder of SmolLM2, without weights.
func smolFolder(t testing.TB) fstest.MapFS {
	t.Helper()
	f, err := os.Open(goldentest.Path(t, "render", "smollm2-tokenizer.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(goldentest.Path(t, "render", "smollm2-tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{
		"tokenizer.json":         {Data: tok},
		"tokenizer_config.json":  {Data: config},
		"generation_config.json": {Data: []byte(`{"eos_token_id": [2, 0]}`)},
	}
}

// wireMessage is a message of the golden files: OpenAI's form.
type wireMessage struct {
	Role      string
	Content   string
	ToolCalls []struct {
		ID       string
		Function struct {
			Name      string
			Arguments json.RawMessage
		}
	} `json:"tool_calls"`
}

func messagesOf(t testing.TB, raw json.RawMessage) []fulgur.Message {
	t.Helper()
	var ws []wireMessage
	if err := json.Unmarshal(raw, &ws); err != nil {
		t.Fatal(err)
	}
	out := make([]fulgur.Message, len(ws))
	for i, w := range ws {
		out[i] = fulgur.Message{Role: w.Role, Content: w.Content}
		for _, c := range w.ToolCalls {
			out[i].ToolCalls = append(out[i].ToolCalls, fulgur.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: string(c.Function.Arguments)})
		}
	}
	return out
}

type goldenChat struct {
	ID       string
	Messages json.RawMessage
	Tools    []string
	Kwargs   json.RawMessage
	AddGen   bool `json:"add_generation_prompt"`
	Continue bool `json:"continue_final_message"`
	Rendered *string
	IDs      []int32
	Error    *struct{ Kind, Message string }
}

type goldenDrift struct {
	ID, Class      string
	PromptMessages json.RawMessage `json:"prompt_messages"`
	PromptIDs      []int32         `json:"prompt_ids"`
	SampledIDs     []int32         `json:"sampled_ids"`
	SampledText    string          `json:"sampled_text"`
	Parsed         json.RawMessage `json:"parsed_message"`
	Next           json.RawMessage `json:"next_messages"`
	NextIDs        []int32         `json:"next_ids"`
	Tools          []string
	Tito           *struct {
		CloseIDs []int32 `json:"close_ids"`
		TailIDs  []int32 `json:"tail_ids"`
	}
}

type goldenFamily struct {
	MadeWith struct{ Now string } `json:"made_with"`
	Stop     map[string]int32     `json:"stop_tokens"`
	Tools    map[string]json.RawMessage
	Chat     []goldenChat
	Drift    []goldenDrift
}

func (g *goldenFamily) now(t *testing.T) func() time.Time {
	t.Helper()
	now, err := time.Parse("2006-01-02T15:04:05", g.MadeWith.Now)
	if err != nil {
		t.Fatal(err)
	}
	return func() time.Time { return now }
}

func smolGolden(t *testing.T, opt Options) (*goldenFamily, *Renderer) {
	t.Helper()
	g := &goldenFamily{}
	goldentest.Load(t, g, "render", "smollm2.json")
	opt.Now = g.now(t)
	r, err := Load(smolFolder(t), opt)
	if err != nil {
		t.Fatal(err)
	}
	return g, r
}

// renderGolden renders a case as it stands in the file: messages in any shape.
func renderGolden(t *testing.T, r *Renderer, g *goldenFamily, c goldenChat) (jinja.Output, error) {
	t.Helper()
	value := func(b []byte) jinja.Value {
		v, err := jinja.FromJSON(b)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	var tools jinja.Value
	if c.Tools != nil {
		vs := []jinja.Value{}
		for _, n := range c.Tools {
			vs = append(vs, value(g.Tools[n]))
		}
		tools = jinja.NewList(vs...)
	}
	with := &Renderer{opt: r.opt, tmpl: r.tmpl, vars: slices.Clone(r.vars)}
	if err := with.addKwargs(c.Kwargs); err != nil {
		t.Fatal(err)
	}
	out, err := with.run(value(c.Messages), tools, c.AddGen)
	if err == nil && c.Continue {
		ms := messagesOf(t, c.Messages)
		return cutBehind(out, ms[len(ms)-1].Content)
	}
	return out, err
}

func TestGoldenSmolLM2Chat(t *testing.T) {
	g, r := smolGolden(t, Options{ControlTokensInText: true})
	if len(g.Chat) == 0 {
		t.Fatal("no cases")
	}
	viaAPI := 0
	for _, c := range g.Chat {
		t.Run(c.ID, func(t *testing.T) {
			out, err := renderGolden(t, r, g, c)
			if c.Error != nil {
				if fulgur.KindOf(err) != fulgur.KindInvalid {
					t.Errorf("error %v, rendered %q, want a refusal (%s)", err, out.Text, c.Error.Kind)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if out.Text != *c.Rendered {
				t.Errorf("rendered\n got %q\nwant %q", out.Text, *c.Rendered)
			}
			if got := r.encode(nil, out, 0); !slices.Equal(got, c.IDs) {
				t.Errorf("ids\n got %v\nwant %v", got, c.IDs)
			}
			if !c.AddGen || c.Kwargs != nil {
				return
			}
			viaAPI++
			var tools []fulgur.Tool
			for _, n := range c.Tools {
				tools = append(tools, fulgur.Tool{Name: n, Raw: g.Tools[n]})
			}
			ids, err := r.Render(messagesOf(t, c.Messages), tools)
			if err != nil || !slices.Equal(ids, c.IDs) {
				t.Errorf("Render: %v (%v), want %v", ids, err, c.IDs)
			}
		})
	}
	t.Logf("smollm2.json: %d chats, %d of them also from fulgur's own messages", len(g.Chat), viaAPI)
}

func TestGoldenSmolLM2Drift(t *testing.T) {
	g, r := smolGolden(t, Options{})
	if len(g.Drift) == 0 {
		t.Fatal("no cases")
	}
	for text, id := range g.Stop {
		if !slices.Contains(r.StopIDs(), id) {
			t.Errorf("%s, %d, is no stop token", text, id)
		}
	}
	for _, c := range g.Drift {
		for _, history := range []History{HistoryDeployed, HistorySampled} {
			t.Run(c.ID+"/"+string(history), func(t *testing.T) { checkDrift(t, r, c, history) })
		}
	}
	t.Logf("smollm2.json: %d drift cases, in both histories", len(g.Drift))
}

func checkDrift(t *testing.T, r *Renderer, c goldenDrift, history History) {
	prompt := messagesOf(t, c.PromptMessages)
	ids, err := r.Render(prompt, nil)
	if err != nil || !slices.Equal(ids, c.PromptIDs) {
		t.Errorf("prompt: %v (%v), want %v", ids, err, c.PromptIDs)
	}
	if got := r.Decode(c.SampledIDs); got != c.SampledText {
		t.Errorf("sampled text %q, want %q", got, c.SampledText)
	}
	parsed := messagesOf(t, append(append([]byte("["), c.Parsed...), ']'))[0]
	reply, _ := r.Parse(c.SampledIDs, nil)
	if !reply.Same(parsed) {
		t.Errorf("parsed %+v, want %+v", reply, parsed)
	}
	known := Known{Messages: append(prompt, parsed), PromptIDs: c.PromptIDs, SampledIDs: c.SampledIDs}
	p, err := r.Extend(known, messagesOf(t, c.Next), nil, history)
	if err != nil {
		t.Fatal(err)
	}
	if c.Tito == nil {
		if p.Break != c.Class || !slices.Equal(p.IDs, c.NextIDs) {
			t.Errorf("break %q, want %q; ids %v, want %v", p.Break, c.Class, p.IDs, c.NextIDs)
		}
		return
	}
	want := slices.Concat(c.PromptIDs, c.SampledIDs, c.Tito.CloseIDs, c.Tito.TailIDs)
	if p.Break != "" || p.Known != len(c.PromptIDs)+len(c.SampledIDs) || !slices.Equal(p.IDs, want) {
		t.Errorf("break %q, known %d, ids\n got %v\nwant %v", p.Break, p.Known, p.IDs, want)
	}
}

func TestErrorsAreOfTheTemplate(t *testing.T) {
	r, err := Load(smolFolder(t), Options{Template: `{{ raise_exception('no system please') }}`})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Render([]fulgur.Message{{Role: "user"}}, nil)
	var e *fulgur.Error
	if !errors.As(err, &e) || e.Kind != fulgur.KindInvalid || e.Msg != "the model's chat template refuses these messages: no system please" {
		t.Errorf("error %v", err)
	}
}

// TestGoldenTemplatesContinue: the cases of templates.json that go on with a
// message; the others are internal/jinja's (see TestGoldenTemplates there for
// FULGUR_TEMPLATES).
func TestGoldenTemplatesContinue(t *testing.T) {
	dir := os.Getenv("FULGUR_TEMPLATES")
	if dir == "" {
		t.Skip("FULGUR_TEMPLATES does not name the unpacked llama-cpp-python sdist")
	}
	var g struct {
		goldenFamily
		SpecialTokens map[string]string `json:"special_tokens"`
		Templates     map[string]struct{ File string }
		Messages      map[string]json.RawMessage
		Cases         []struct {
			goldenChat
			Template, Chat string
		}
	}
	goldentest.Load(t, &g, "render", "templates.json")
	n := 0
	for _, c := range g.Cases {
		if !c.Continue {
			continue
		}
		n++
		src, err := os.ReadFile(filepath.Join(dir, g.Templates[c.Template].File))
		if err != nil {
			t.Fatal(err)
		}
		r := &Renderer{opt: Options{Now: g.now(t)}}
		if r.tmpl, err = jinja.Compile(c.Template, string(src)); err != nil {
			t.Fatal(err)
		}
		for k, v := range g.SpecialTokens {
			r.vars = append(r.vars, variable{k, jinja.Text(v)})
		}
		c.Messages = g.Messages[c.Chat]
		out, err := renderGolden(t, r, &g.goldenFamily, c.goldenChat)
		if err != nil || c.Rendered == nil || out.Text != *c.Rendered {
			t.Errorf("%s: %v, rendered %q", c.ID, err, out.Text)
		}
	}
	goldentest.Count(t, "templates.json (continued)", n)
}
