// go-redis, one cluster client for all goroutines. See README.md.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return n
}

func main() {
	host, port := os.Args[1], os.Args[2]
	threads, every, timeout := number(os.Args[3]), number(os.Args[4]), number(os.Args[5])
	keys := strings.Split(os.Args[6], ",")
	patience := time.Duration(timeout) * time.Millisecond
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{host + ":" + port}, DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience,
	})
	ctx := context.Background()
	if err := client.Set(ctx, keys[0], "v", 0).Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	fmt.Println("ready go-redis", redis.Version())
	var lock sync.Mutex
	step := time.Duration(every) * time.Microsecond
	for i := 0; i < threads; i++ {
		go func(thread int) {
			key := keys[thread%len(keys)]
			due := time.Now()
			for n := 0; ; n++ {
				due = due.Add(step)
				if oldest := time.Now().Add(-step); due.Before(oldest) {
					due = oldest
				}
				time.Sleep(time.Until(due))
				begun := time.Now()
				var err error
				if n%2 == 0 {
					err = client.Set(ctx, key, n, 0).Err()
				} else {
					err = client.Get(ctx, key).Err()
				}
				outcome := "ok"
				if err != nil && err != redis.Nil {
					outcome = strings.ReplaceAll(reflect.TypeOf(err).String(), " ", "")
				}
				end := time.Now()
				lock.Lock()
				fmt.Println(end.UnixMicro(), end.Sub(begun).Microseconds(), thread, outcome)
				lock.Unlock()
			}
		}(i)
	}
	io.Copy(io.Discard, os.Stdin)
}
