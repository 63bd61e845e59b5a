// Command judge reads Iceberg tables with iceberg-go: requests as JSON lines, rows as Arrow's IPC stream in a file.
//
// It is the worker of `kit.judging` for iceberg-go, and ends when its standard input does.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
)

const module = "github.com/apache/iceberg-go"

type request struct {
	Metadata string `json:"metadata"`
	Rows     string `json:"rows"`
}

func main() {
	say(map[string]string{"version": version()})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var asked request
		err := json.Unmarshal(lines.Bytes(), &asked)
		if err == nil {
			err = answer(asked)
		}
		if err != nil {
			say(map[string]string{"error": err.Error()})
			continue
		}
		say(map[string]string{})
	}
}

func answer(asked request) (err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("panic: %v", thrown)
		}
	}()
	ctx := context.Background()
	location := "file://" + asked.Metadata
	found, err := table.NewFromLocation(ctx, table.Identifier{"db", "t"}, location, iceio.LoadFSFunc(nil, location), nil)
	if err != nil {
		return err
	}
	schema, records, err := found.Scan().ToArrowRecords(ctx)
	if err != nil {
		return err
	}
	file, err := os.Create(asked.Rows)
	if err != nil {
		return err
	}
	defer file.Close()
	stream := ipc.NewWriter(file, ipc.WithSchema(schema))
	defer func() { stream.Close() }()
	for record, err := range records {
		if err != nil {
			return err
		}
		// A record may name fields of lists otherwise than the schema of the scan does.
		if !record.Schema().Equal(schema) {
			if err := stream.Close(); err != nil {
				return err
			}
			schema = record.Schema()
			stream = ipc.NewWriter(file, ipc.WithSchema(schema))
		}
		if err := stream.Write(record); err != nil {
			return err
		}
		record.Release()
	}
	return nil
}

func version() string {
	build, _ := debug.ReadBuildInfo()
	for _, one := range build.Deps {
		if one.Path == module {
			return one.Version
		}
	}
	return "unknown"
}

func say(answer map[string]string) {
	text, _ := json.Marshal(answer)
	fmt.Println(string(text))
}
