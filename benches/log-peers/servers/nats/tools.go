//go:build tools

// Package tools names the programs that go.mod holds: the server, and what it is measured with.
package tools

import (
	_ "github.com/nats-io/nats-server/v2"
	_ "github.com/nats-io/natscli/nats"
)
