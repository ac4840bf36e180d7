// A stand-in for Nomad's agent, for tests of a task driver: launches the plugin through go-plugin, as the agent does,
// and calls it as it is told.
//
//	main ─► plugin ─► call, config
//
// It reads requests from stdin, one JSON object a line, and writes answers to stdout in the same way:
//
//	{"id": 1, "do": "launch", "plugin": "a", "path": "/usr/bin/driver"}     {"id": 1, "ok": {"pid": 4711, …}}
//	{"id": 2, "do": "call", "plugin": "a", "method": "…/StartTask", …}      {"id": 2, "error": {"code": "NotFound", …}}
//	{"id": 3, "do": "open", "plugin": "a", "method": "…/TaskStats", …}      {"id": 3, "item": {…}} … {"id": 3, "ok": {}}
//	{"id": 3, "do": "send", "message": {…}}                                 (what goes wrong, the stream says)
//
// Messages are in protobuf's JSON: bytes in base64, 64-bit integers as strings. Requests run beside each other. At the
// end of stdin it kills the plugins, as an agent does that is stopped.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"sync"
)

// What a request may say; which of it counts depends on what it is to do.
type request struct {
	ID     int64  `json:"id"`
	Do     string `json:"do"`
	Plugin string `json:"plugin"`
	launching
	calling
	encoding
}

type answer struct {
	ID    int64           `json:"id"`
	Item  json.RawMessage `json:"item,omitempty"`
	OK    any             `json:"ok,omitempty"`
	Error any             `json:"error,omitempty"`
}

var nothing = struct{}{}

type agent struct {
	mutex   sync.Mutex
	plugins map[string]*plugged
	streams map[int64]*stream
	writing sync.Mutex
}

func main() {
	agent := &agent{plugins: map[string]*plugged{}, streams: map[int64]*stream{}}
	reader := bufio.NewReader(os.Stdin)
	for {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			agent.end()
			return
		} else if err != nil {
			log.Fatalf("cannot read requests: %v", err)
		}
		var asked request
		if err := json.Unmarshal(line, &asked); err != nil {
			log.Fatalf("not a request: %v: %s", err, line)
		}
		agent.take(asked)
	}
}

// Starts what was asked, in the order in which requests came.
func (a *agent) take(asked request) {
	switch asked.Do {
	case "open":
		// Before the next request, which may send to it.
		stream := newStream()
		a.mutex.Lock()
		a.streams[asked.ID] = stream
		a.mutex.Unlock()
		go a.reply(asked.ID, func() (any, error) { return a.open(asked, stream) })
	case "send", "close", "cancel":
		a.mutex.Lock()
		stream := a.streams[asked.ID]
		a.mutex.Unlock()
		if stream == nil {
			log.Fatalf("no stream %d", asked.ID)
		}
		stream.take(asked.Do, asked.Message)
	default:
		go a.reply(asked.ID, func() (any, error) { return a.do(asked) })
	}
}

func (a *agent) reply(id int64, do func() (any, error)) {
	ok, err := do()
	if err != nil {
		a.write(answer{ID: id, Error: described(err)})
	} else {
		a.write(answer{ID: id, OK: ok})
	}
}

func (a *agent) write(answer answer) {
	line, err := json.Marshal(answer)
	if err != nil {
		log.Fatalf("cannot write an answer: %v", err)
	}
	a.writing.Lock()
	defer a.writing.Unlock()
	// Nobody may be reading any more.
	_, _ = os.Stdout.Write(append(line, '\n'))
}

func (a *agent) do(asked request) (any, error) {
	switch asked.Do {
	case "launch":
		plugged, err := launch(asked.launching)
		if err != nil {
			return nil, err
		}
		a.mutex.Lock()
		a.plugins[asked.Plugin] = plugged
		a.mutex.Unlock()
		return plugged.identity(), nil
	case "msgpack":
		return packed(asked.encoding)
	}
	plugged, err := a.find(asked.Plugin)
	if err != nil {
		return nil, err
	}
	switch asked.Do {
	case "kill":
		return plugged.kill(), nil
	case "ping":
		return nothing, plugged.ping()
	case "logs":
		return plugged.logs.entries(), nil
	case "call":
		return plugged.call(asked.calling)
	case "encode":
		return plugged.encode(asked.encoding)
	}
	log.Fatalf("nobody knows how to %q", asked.Do)
	return nil, nil
}

func (a *agent) open(asked request, stream *stream) (any, error) {
	plugged, err := a.find(asked.Plugin)
	if err != nil {
		return nil, err
	}
	err = plugged.open(asked.calling, stream, func(item json.RawMessage) { a.write(answer{ID: asked.ID, Item: item}) })
	return nothing, err
}

func (a *agent) find(name string) (*plugged, error) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if plugged := a.plugins[name]; plugged != nil {
		return plugged, nil
	}
	return nil, errors.New("no plugin was launched as " + name)
}

// Kills the plugins, beside each other.
func (a *agent) end() {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	var all sync.WaitGroup
	for _, one := range a.plugins {
		all.Add(1)
		go func(one *plugged) {
			defer all.Done()
			one.kill()
		}(one)
	}
	all.Wait()
}
