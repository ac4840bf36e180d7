package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	// Their services and messages are looked up by name.
	_ "bowline.invalid/nomad-agent/proto/base"
	_ "bowline.invalid/nomad-agent/proto/driver"
	_ "bowline.invalid/nomad-agent/proto/structs"
)

// A call: `package.Service/Method`, its message, and its deadline.
type calling struct {
	Method    string          `json:"method"`
	Message   json.RawMessage `json:"message"`
	TimeoutMS int64           `json:"timeout_ms"`
}

func (p *plugged) call(asked calling) (any, error) {
	method, err := find(asked.Method)
	if err != nil {
		return nil, err
	}
	request, err := message(method.Input(), asked.Message)
	if err != nil {
		return nil, err
	}
	answer, err := message(method.Output(), nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := asked.context()
	defer cancel()
	if err := p.conn.Invoke(ctx, "/"+asked.Method, request, answer); err != nil {
		return nil, err
	}
	return shown(answer)
}

// A stream of messages to the plugin and from it.
type stream struct {
	ctx    context.Context
	cancel context.CancelFunc
	// What is sent, in order; nil: no more follows.
	out chan json.RawMessage
}

func newStream() *stream {
	ctx, cancel := context.WithCancel(context.Background())
	return &stream{ctx: ctx, cancel: cancel, out: make(chan json.RawMessage, 1024)}
}

func (s *stream) take(do string, message json.RawMessage) {
	switch do {
	case "send":
		s.out <- message
	case "close":
		close(s.out)
	case "cancel":
		s.cancel()
	}
}

// Runs a stream to its end. A method that takes one message gets that of the request, others those that are sent.
func (p *plugged) open(asked calling, stream *stream, item func(json.RawMessage)) error {
	defer stream.cancel()
	method, err := find(asked.Method)
	if err != nil {
		return err
	}
	description := &grpc.StreamDesc{ServerStreams: true, ClientStreams: method.IsStreamingClient()}
	calls, err := p.conn.NewStream(stream.ctx, description, "/"+asked.Method)
	if err != nil {
		return err
	}
	if !method.IsStreamingClient() {
		stream.out <- asked.Message
		close(stream.out)
	}
	go stream.send(calls, method.Input())
	for {
		answer, err := message(method.Output(), nil)
		if err != nil {
			return err
		}
		if err := calls.RecvMsg(answer); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		text, err := shown(answer)
		if err != nil {
			return err
		}
		item(text)
	}
}

func (s *stream) send(calls grpc.ClientStream, of protoreflect.MessageDescriptor) {
	for text := range s.out {
		request, err := message(of, text)
		if err != nil {
			log.Fatalf("no %s: %v", of.FullName(), err)
		}
		// Why it has ended, the answers say.
		if calls.SendMsg(request) != nil {
			return
		}
	}
	_ = calls.CloseSend()
}

func (c calling) context() (context.Context, context.CancelFunc) {
	if c.TimeoutMS == 0 {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), time.Duration(c.TimeoutMS)*time.Millisecond)
}

func find(method string) (protoreflect.MethodDescriptor, error) {
	service, name, _ := strings.Cut(method, "/")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, fmt.Errorf("no service %s: %w", service, err)
	}
	descriptor, ok := found.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is no service", service)
	}
	if method := descriptor.Methods().ByName(protoreflect.Name(name)); method != nil {
		return method, nil
	}
	return nil, fmt.Errorf("%s has no %s", service, name)
}

// A message of this type that says what `text` does.
func message(of protoreflect.MessageDescriptor, text json.RawMessage) (proto.Message, error) {
	found, err := protoregistry.GlobalTypes.FindMessageByName(of.FullName())
	if err != nil {
		return nil, err
	}
	made := found.New().Interface()
	if text != nil {
		err = protojson.Unmarshal(text, made)
	}
	return made, err
}

func shown(message proto.Message) (json.RawMessage, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(message)
}

// An error as the agent sees it: gRPC's code, its message, and the details that came with it.
func described(err error) any {
	said := status.Convert(err)
	details := []json.RawMessage{}
	for _, detail := range said.Details() {
		if known, ok := detail.(proto.Message); ok {
			if text, err := shown(known); err == nil {
				details = append(details, text)
			}
		}
	}
	return map[string]any{"code": said.Code().String(), "message": said.Message(), "details": details}
}
