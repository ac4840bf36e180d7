package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/zclconf/go-cty/cty"
	ctypack "github.com/zclconf/go-cty/cty/msgpack"
	"google.golang.org/protobuf/encoding/protojson"

	"bowline.invalid/nomad-agent/proto/hclspec"
)

// A value that is encoded, by a schema of the plugin or as it is.
type encoding struct {
	Value json.RawMessage `json:"value"`
	// Which schema: `config` or `task`.
	Schema string `json:"schema"`
	// All numbers as floating-point ones, where there is no schema.
	Floats bool `json:"floats"`
}

var schemas = map[string]string{
	"config": "hashicorp.nomad.plugins.base.proto.BasePlugin/ConfigSchema",
	"task":   "hashicorp.nomad.plugins.drivers.proto.Driver/TaskConfigSchema",
}

// The value as msgpack, checked against a schema as the agent does: what that does not allow never reaches the plugin.
func (p *plugged) encode(asked encoding) ([]byte, error) {
	spec, err := p.schema(asked.Schema)
	if err != nil {
		return nil, err
	}
	file, diagnostics := hcljson.Parse(asked.Value, "config")
	if diagnostics.HasErrors() {
		return nil, diagnostics
	}
	value, diagnostics := hcldec.Decode(file.Body, spec, nil)
	if diagnostics.HasErrors() {
		return nil, diagnostics
	}
	return ctypack.Marshal(value, value.Type())
}

// The value as msgpack without any schema.
func packed(asked encoding) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(asked.Value))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	plain, err := asked.plain(value)
	if err != nil {
		return nil, err
	}
	return msgpack.Marshal(plain)
}

// The value with numbers as msgpack knows them.
func (e encoding) plain(value any) (any, error) {
	var err error
	switch value := value.(type) {
	case json.Number:
		if e.Floats || strings.ContainsAny(value.String(), ".eE") {
			return value.Float64()
		}
		return value.Int64()
	case []any:
		for i, one := range value {
			if value[i], err = e.plain(one); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key, one := range value {
			if value[key], err = e.plain(one); err != nil {
				return nil, err
			}
		}
	}
	return value, nil
}

func (p *plugged) schema(which string) (hcldec.Spec, error) {
	if known, ok := p.schemas.Load(which); ok {
		return known.(hcldec.Spec), nil
	}
	answer, err := p.call(calling{Method: schemas[which]})
	if err != nil {
		return nil, err
	}
	var response struct{ Spec json.RawMessage }
	if err := json.Unmarshal(answer.(json.RawMessage), &response); err != nil {
		return nil, err
	}
	var said hclspec.Spec
	if err := protojson.Unmarshal(response.Spec, &said); err != nil {
		return nil, err
	}
	if _, ok := said.Block.(*hclspec.Spec_Object); !ok {
		return nil, errors.New("the schema is no object")
	}
	spec, err := converted(&said, "")
	if err == nil {
		p.schemas.Store(which, spec)
	}
	return spec, err
}

// The schema as HCL's library has it. What has no name is named after its key in the object that it is in.
func converted(said *hclspec.Spec, key string) (hcldec.Spec, error) {
	named := func(name string) string {
		if name == "" {
			return key
		}
		return name
	}
	switch block := said.Block.(type) {
	case *hclspec.Spec_Object:
		object := hcldec.ObjectSpec{}
		for key, one := range block.Object.Attributes {
			spec, err := converted(one, key)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			object[key] = spec
		}
		return object, nil
	case *hclspec.Spec_Array:
		tuple := hcldec.TupleSpec{}
		for _, one := range block.Array.Values {
			spec, err := converted(one, "")
			if err != nil {
				return nil, err
			}
			tuple = append(tuple, spec)
		}
		return tuple, nil
	case *hclspec.Spec_Attr:
		kind, err := typed(block.Attr.Type)
		return &hcldec.AttrSpec{Name: named(block.Attr.Name), Type: kind, Required: block.Attr.Required}, err
	case *hclspec.Spec_BlockValue:
		nested, err := converted(block.BlockValue.Nested, "")
		return &hcldec.BlockSpec{
			TypeName: named(block.BlockValue.Name), Nested: nested, Required: block.BlockValue.Required,
		}, err
	case *hclspec.Spec_BlockAttrs:
		kind, err := typed(block.BlockAttrs.Type)
		return &hcldec.BlockAttrsSpec{
			TypeName: named(block.BlockAttrs.Name), ElementType: kind, Required: block.BlockAttrs.Required,
		}, err
	case *hclspec.Spec_BlockList:
		list := block.BlockList
		nested, err := converted(list.Nested, "")
		return &hcldec.BlockListSpec{
			TypeName: named(list.Name), Nested: nested, MinItems: int(list.MinItems), MaxItems: int(list.MaxItems),
		}, err
	case *hclspec.Spec_BlockSet:
		set := block.BlockSet
		nested, err := converted(set.Nested, "")
		return &hcldec.BlockSetSpec{
			TypeName: named(set.Name), Nested: nested, MinItems: int(set.MinItems), MaxItems: int(set.MaxItems),
		}, err
	case *hclspec.Spec_BlockMap:
		nested, err := converted(block.BlockMap.Nested, "")
		return &hcldec.BlockMapSpec{
			TypeName: named(block.BlockMap.Name), LabelNames: block.BlockMap.Labels, Nested: nested,
		}, err
	case *hclspec.Spec_Default:
		primary, err := converted(block.Default.Primary, key)
		if err != nil {
			return nil, err
		}
		fallback, err := converted(block.Default.Default, key)
		return &hcldec.DefaultSpec{Primary: primary, Default: fallback}, err
	case *hclspec.Spec_Literal:
		expression, err := expressed(block.Literal.Value)
		if err != nil {
			return nil, err
		}
		value, diagnostics := expression.Value(nil)
		if diagnostics.HasErrors() {
			return nil, diagnostics
		}
		return &hcldec.LiteralSpec{Value: value}, nil
	}
	return nil, fmt.Errorf("a schema of no kind: %v", said)
}

// A type as the schema writes it, such as `list(string)`.
func typed(text string) (cty.Type, error) {
	expression, err := expressed(text)
	if err != nil {
		return cty.NilType, err
	}
	kind, diagnostics := typeexpr.TypeConstraint(expression)
	if diagnostics.HasErrors() {
		return cty.NilType, diagnostics
	}
	return kind, nil
}

func expressed(text string) (hclsyntax.Expression, error) {
	expression, diagnostics := hclsyntax.ParseExpression([]byte(text), "schema", hcl.InitialPos)
	if diagnostics.HasErrors() {
		return nil, diagnostics
	}
	return expression, nil
}
