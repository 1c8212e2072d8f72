package io.github.unslow.lettuce.boot;

import io.github.unslow.lettuce.TopologyOptions;
import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;

/**
 * {@code unslow.lettuce.*}: how clients of a Redis Cluster learn of it.
 *
 * @param enabled {@code false} leaves Lettuce as it is; default {@code true}
 * @param sources which nodes are asked; default {@code replicas}
 * @param sampleSize how many of them in a refresh; default 2
 * @param push who tells of changes; default {@code auto}
 * @param refreshPeriod between two refreshes while nobody tells; default 60 s
 * @param refreshPeriodWithPush the same while somebody does; default 10 min
 * @param hungAfter a node that owes an answer this long is asked whether it lives; default 200 ms, zero never asks
 * @param subscribersMax from so many subscribers of a slot on, a client subscribes to one slot a shard; default 200
 * @param heartbeatListenersMax from so many listeners at a node on, a client hears the heartbeat now and then; default 25
 */
@ConfigurationProperties("unslow.lettuce")
public record UnslowLettuceProperties(Boolean enabled, TopologyOptions.Sources sources, Integer sampleSize,
        TopologyOptions.Push push, Duration refreshPeriod, Duration refreshPeriodWithPush, Duration hungAfter,
        Integer subscribersMax, Integer heartbeatListenersMax) {

    TopologyOptions toOptions() {
        TopologyOptions.Builder builder = TopologyOptions.builder();
        if (sources != null) {
            builder.sources(sources);
        }
        if (sampleSize != null) {
            builder.sampleSize(sampleSize);
        }
        if (push != null) {
            builder.push(push);
        }
        if (refreshPeriod != null) {
            builder.refreshPeriod(refreshPeriod);
        }
        if (refreshPeriodWithPush != null) {
            builder.refreshPeriodWithPush(refreshPeriodWithPush);
        }
        if (hungAfter != null) {
            builder.hungAfter(hungAfter);
        }
        if (subscribersMax != null) {
            builder.subscribersMax(subscribersMax);
        }
        if (heartbeatListenersMax != null) {
            builder.heartbeatListenersMax(heartbeatListenersMax);
        }
        return builder.build();
    }

}
