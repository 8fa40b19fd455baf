package oncebox

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

var bucketName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// wrongError says that the payload cannot be had: its object is missing, or is not the one that the
// message names. It is a failed attempt.
type wrongError struct{ error }

func wrong(format string, arguments ...any) error {
	return wrongError{fmt.Errorf(format, arguments...)}
}

// isElsewhere says whether the payload lies in a bucket.
func isElsewhere(message Message) bool {
	_, isThere := message.Headers["oncebox-object"]
	return isThere && len(message.Payload) == 0
}

// whole is the message with its payload, which may lie in a bucket of the NATS Object Store. Another
// error than a wrongError says that NATS does not answer now.
func whole(ctx context.Context, js jetstream.JetStream, message Message, bytesMax int) (Message, error) {
	if !isElsewhere(message) {
		return message, nil
	}
	place := message.Headers["oncebox-object"]
	bucket, name, _ := strings.Cut(place, "/")
	size, err := strconv.Atoi(message.Headers["oncebox-object-bytes"])
	digest := message.Headers["oncebox-object-digest"]
	if !bucketName.MatchString(bucket) || name == "" || err != nil || size < 0 || digest == "" {
		return message, wrong("the headers that name the object of the payload are incomplete")
	}
	if size > bytesMax {
		return message, wrong("object %s has %d bytes, and ObjectBytesMax allows %d", place, size, bytesMax)
	}
	payload, err := read(ctx, js, bucket, name, size)
	if errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return message, wrong("object %s is not there, or not all of it: %w", place, err)
	}
	if err != nil {
		return message, err
	}
	found := sha256.Sum256(payload)
	if "SHA-256="+base64.URLEncoding.EncodeToString(found[:]) != digest {
		return message, wrong("object %s is not the one that the message names", place)
	}
	message.Payload = payload
	return message, nil
}

// read reads chunk by chunk, and so each answer is small, and one that is missing is known at once.
func read(ctx context.Context, js jetstream.JetStream, bucket, name string, size int) ([]byte, error) {
	stream, err := js.Stream(ctx, "OBJ_"+bucket)
	if err != nil {
		return nil, err
	}
	described, err := stream.GetLastMsgForSubject(ctx, "$O."+bucket+".M."+base64.URLEncoding.EncodeToString([]byte(name)))
	if err != nil {
		return nil, err
	}
	var description struct{ Nuid string }
	if json.Unmarshal(described.Data, &description) != nil {
		return nil, wrong("object %s/%s has no readable description", bucket, name)
	}
	subject := "$O." + bucket + ".C." + description.Nuid
	payload := make([]byte, 0, size)
	for next := uint64(1); len(payload) < size; {
		chunk, err := stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(subject))
		if err != nil {
			return nil, err
		}
		if len(chunk.Data) == 0 {
			break
		}
		payload = append(payload, chunk.Data...)
		next = chunk.Sequence + 1
	}
	return payload, nil
}
