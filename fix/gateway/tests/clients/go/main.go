// go-redis through the gateway. Arguments: host, port, "cluster" where the target is one.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

func must(ok bool, what string, got ...interface{}) {
	if !ok {
		fmt.Println("failed:", what, got)
		os.Exit(1)
	}
}

func suite(ctx context.Context, r redis.UniversalClient, one bool) {
	must(r.Set(ctx, "s", "v", 0).Err() == nil, "set")
	must(r.Get(ctx, "s").Val() == "v", "get")
	must(r.Get(ctx, "none").Err() == redis.Nil, "nil")
	pipe := r.Pipeline()
	for i := 0; i < 300; i++ {
		pipe.Set(ctx, "p"+strconv.Itoa(i), i, 0)
	}
	_, err := pipe.Exec(ctx)
	must(err == nil, "pipeline", err)
	for i := 0; i < 300; i++ {
		must(r.Get(ctx, "p"+strconv.Itoa(i)).Val() == strconv.Itoa(i), "value", i)
	}
	must(r.HSet(ctx, "h", "a", "1", "b", "2").Err() == nil, "hset")
	must(len(r.HGetAll(ctx, "h").Val()) == 2, "hgetall")
	must(r.XAdd(ctx, &redis.XAddArgs{Stream: "st", Values: []string{"f", "v"}}).Err() == nil, "xadd")
	streams, err := r.XRead(ctx, &redis.XReadArgs{Streams: []string{"st", "0"}, Count: 1, Block: -1}).Result()
	must(err == nil && len(streams) == 1, "xread", err)
	err = r.Watch(ctx, func(tx *redis.Tx) error {
		_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error { p.Incr(ctx, "{t}n"); p.Incr(ctx, "{t}n"); return nil })
		return err
	}, "{t}n")
	must(err == nil, "transaction", err)
	must(redis.NewScript("return redis.call('get', KEYS[1])").Run(ctx, r, []string{"s"}).Val() == "v", "script")
	sub := r.Subscribe(ctx, "c")
	_, err = sub.Receive(ctx)
	must(err == nil, "subscribe", err)
	must(r.Publish(ctx, "c", "hello").Err() == nil, "publish")
	message, err := sub.ReceiveMessage(ctx)
	must(err == nil && message.Payload == "hello", "message", err)
	must(sub.Close() == nil, "close")
	go func() { time.Sleep(200 * time.Millisecond); r.RPush(ctx, "q", "x") }()
	popped, err := r.BLPop(ctx, 5*time.Second, "q").Result()
	must(err == nil && popped[1] == "x", "blpop", err)
	if one {
		must(len(r.MGet(ctx, "p1", "p2", "none").Val()) == 3, "mget")
		must(r.Del(ctx, "p1", "p2", "p3").Val() == 3, "del")
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	address := os.Args[1] + ":" + os.Args[2]
	for _, protocol := range []int{2, 3} {
		r := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol})
		must(r.FlushAll(ctx).Err() == nil, "flushall")
		suite(ctx, r, true)
		r.Close()
	}
	if os.Args[3] == "cluster" {
		r := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address}})
		suite(ctx, r, false)
		r.Close()
	}
	fmt.Println("go-redis ok")
}
