package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os/exec"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
)

// How to launch a plugin, or where one is that another agent has launched.
type launching struct {
	Path     string    `json:"path"`
	Args     []string  `json:"args"`
	Env      []string  `json:"env"`
	Reattach *reattach `json:"reattach"`
	// Sets PLUGIN_MULTIPLEX_GRPC, which Nomad does not.
	Multiplex bool `json:"multiplex"`
}

type reattach struct {
	PID     int    `json:"pid"`
	Address string `json:"address"`
}

// The same for every plugin of Nomad.
var handshake = plugin.HandshakeConfig{
	ProtocolVersion:  2,
	MagicCookieKey:   "NOMAD_PLUGIN_MAGIC_COOKIE",
	MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
}

// What a plugin is dispensed as: its connection.
type connection struct{ plugin.NetRPCUnsupportedPlugin }

func (connection) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return errors.New("this is no plugin")
}

func (connection) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// A plugin that was launched.
type plugged struct {
	client *plugin.Client
	// Not there where another agent has launched it.
	command *exec.Cmd
	conn    *grpc.ClientConn
	logs    *logs
	schemas sync.Map
}

func launch(how launching) (*plugged, error) {
	logs := &logs{}
	plugged := &plugged{logs: logs}
	config := &plugin.ClientConfig{
		HandshakeConfig:     handshake,
		Plugins:             plugin.PluginSet{"base": connection{}, "driver": connection{}},
		AllowedProtocols:    []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:              hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: logs, JSONFormat: true}),
		GRPCBrokerMultiplex: how.Multiplex,
	}
	if how.Reattach != nil {
		config.Reattach = &plugin.ReattachConfig{
			Protocol:        plugin.ProtocolGRPC,
			ProtocolVersion: int(handshake.ProtocolVersion),
			Addr:            &net.UnixAddr{Name: how.Reattach.Address, Net: "unix"},
			Pid:             how.Reattach.PID,
		}
	} else {
		plugged.command = exec.Command(how.Path, how.Args...)
		plugged.command.Env = how.Env
		config.Cmd = plugged.command
	}
	plugged.client = plugin.NewClient(config)
	protocol, err := plugged.client.Client()
	if err == nil {
		_, err = protocol.Dispense("base")
	}
	var driver any
	if err == nil {
		driver, err = protocol.Dispense("driver")
	}
	if err != nil {
		plugged.client.Kill()
		return nil, err
	}
	plugged.conn = driver.(*grpc.ClientConn)
	return plugged, nil
}

// What another agent needs to reattach.
func (p *plugged) identity() any {
	config := p.client.ReattachConfig()
	return reattach{PID: config.Pid, Address: config.Addr.String()}
}

func (p *plugged) ping() error {
	protocol, err := p.client.Client()
	if err != nil {
		return err
	}
	return protocol.Ping()
}

// Asks it to shut down, and kills it where it does not; says how it ended.
func (p *plugged) kill() any {
	began := time.Now()
	p.client.Kill()
	end := map[string]any{"took_ms": time.Since(began).Milliseconds()}
	if p.command != nil && p.command.ProcessState != nil {
		end["code"] = p.command.ProcessState.ExitCode()
		end["state"] = p.command.ProcessState.String()
	}
	return end
}

// What go-plugin and the plugin have logged, a JSON object a line.
type logs struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (l *logs) Write(line []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.Write(line)
}

func (l *logs) entries() any {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	entries := []json.RawMessage{}
	for _, line := range bytes.Split(bytes.TrimSpace(l.text.Bytes()), []byte{'\n'}) {
		if len(line) > 0 {
			entries = append(entries, append(json.RawMessage{}, line...))
		}
	}
	return entries
}
