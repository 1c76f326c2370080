// Calc-openai-go is the calc agent of ../calc/agent on OpenAI's official Go SDK:
// what a program that was never written for training looks like. It reads
// OPENAI_BASE_URL, OPENAI_API_KEY and its task in QUESTION.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

const (
	system    = "Use the tool, then say Answer: N"
	badCall   = "error: bad call"
	maxCalls  = 12
	maxTokens = 48
)

func main() {
	answer, err := run(context.Background(), os.Getenv("QUESTION"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "calc:", err)
		os.Exit(1)
	}
	fmt.Println(answer)
}

// run holds the conversation and returns the model's last message.
func run(ctx context.Context, question string) (string, error) {
	if question == "" {
		return "", errors.New("QUESTION is not set: it holds the story to answer")
	}
	client := openai.NewClient(option.WithMaxRetries(4))
	params := openai.ChatCompletionNewParams{
		Model:     modelName(),
		MaxTokens: openai.Int(maxTokens),
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
			Name:        "calc",
			Description: openai.String("one operation per call"),
			Parameters: openai.FunctionParameters{
				"type":       "object",
				"properties": map[string]any{"expression": map[string]any{"type": "string"}},
				"required":   []string{"expression"},
			},
		})},
		Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage(system), openai.UserMessage(question)},
	}
	for n := 1; ; n++ {
		completion, err := client.Chat.Completions.New(ctx, params)
		if err != nil {
			return "", fmt.Errorf("asking the model: %w", err)
		}
		if len(completion.Choices) == 0 {
			return "", errors.New("the model's answer has no choices")
		}
		message := completion.Choices[0].Message
		feedback := next(message)
		if len(feedback) == 0 || n == maxCalls {
			return message.Content, nil
		}
		params.Messages = append(append(params.Messages, message.ToParam()), feedback...)
	}
}

func modelName() string {
	if m := os.Getenv("OPENAI_MODEL"); m != "" {
		return m
	}
	return "calc"
}

// next is what the agent answers a message: tool results, or nothing when it is final.
func next(m openai.ChatCompletionMessage) (out []openai.ChatCompletionMessageParamUnion) {
	for _, c := range m.ToolCalls {
		out = append(out, openai.ToolMessage(result(c.Function.Name, c.Function.Arguments), c.ID))
	}
	if len(out) == 0 && strings.Contains(m.Content, "<tool_call>") {
		out = append(out, openai.UserMessage(badCall))
	}
	return out
}

func result(name, arguments string) string {
	var a struct{ Expression *string }
	switch {
	case name != "calc":
		return "error: no such tool"
	case json.Unmarshal([]byte(arguments), &a) != nil || a.Expression == nil:
		return badCall
	}
	return calc(*a.Expression)
}

// calc does one operation on two whole numbers.
func calc(expression string) string {
	m := regexp.MustCompile(`^(-?\d{1,6})([-+*/])(-?\d{1,6})$`).FindStringSubmatch(strings.ReplaceAll(expression, " ", ""))
	if m == nil {
		return "error: one operation"
	}
	a, _ := strconv.Atoi(m[1]) // the pattern takes numbers only
	b, _ := strconv.Atoi(m[3])
	switch m[2] {
	case "+":
		a += b
	case "-":
		a -= b
	case "*":
		a *= b
	default:
		if b == 0 || a%b != 0 {
			return "error: not whole"
		}
		a /= b
	}
	return strconv.Itoa(a)
}
