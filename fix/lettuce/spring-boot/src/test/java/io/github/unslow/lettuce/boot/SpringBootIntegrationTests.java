package io.github.unslow.lettuce.boot;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.unslow.lettuce.Lab;
import io.github.unslow.lettuce.TopologyOptions;
import io.github.unslow.lettuce.TopologyStatus.Source;
import io.github.unslow.lettuce.UnslowRedisClusterClient;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.springframework.boot.SpringBootVersion;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.util.ClassUtils;

/** An application of Spring Boot on a real cluster. */
class SpringBootIntegrationTests {

    /** Spring Boot's own, of 3 or of 4. */
    private static final Class<?> SPRINGS = Stream
            .of("org.springframework.boot.autoconfigure.data.redis.RedisAutoConfiguration",
                    "org.springframework.boot.data.redis.autoconfigure.DataRedisAutoConfiguration")
            .filter(name -> ClassUtils.isPresent(name, null)).map(name -> ClassUtils.resolveClassName(name, null)).findFirst()
            .orElseThrow();

    private static Lab lab;

    @BeforeAll
    static void up() {
        assertEquals(System.getProperty("spring-boot.wanted"), SpringBootVersion.getVersion());
        lab = Lab.cluster("valkey-9.1", 1);
    }

    @AfterAll
    static void down() {
        lab.close();
    }

    private static ApplicationContextRunner application() {
        return new ApplicationContextRunner()
                .withConfiguration(AutoConfigurations.of(SPRINGS, UnslowLettuceAutoConfiguration.class))
                .withPropertyValues("spring.data.redis.cluster.nodes=" + lab.address(2), "spring.data.redis.timeout=2s");
    }

    @Test
    void templatesWorkUnchangedAndHearOfSlots() {
        application().withPropertyValues("unslow.lettuce.push=servers", "unslow.lettuce.sample-size=1").run(context -> {
            StringRedisTemplate template = context.getBean(StringRedisTemplate.class);
            template.opsForValue().set("greeting", "hello");
            assertEquals("hello", template.opsForValue().get("greeting"));
            UnslowRedisClusterClient client = assertInstanceOf(UnslowRedisClusterClient.class,
                    context.getBean(LettuceConnectionFactory.class).getRequiredNativeClient());
            Lab.await("the servers' word", () -> client.getTopologyStatus().source() == Source.SERVERS
                    && client.getTopologyStatus().complete());
            lab.fault("move_slot", "node-3", "42");
            Lab.await("the slot's new owner", () -> lab.address(3).endsWith(":" + client.getPartitions().getMasterBySlot(42)
                    .getUri().getPort()));
        });
    }

    @Test
    void propertiesAreRead() {
        application().withPropertyValues("unslow.lettuce.push=none", "unslow.lettuce.hung-after=0s",
                "unslow.lettuce.refresh-period=5s", "unslow.lettuce.sources=any").run(context -> {
                    TopologyOptions options = context.getBean(UnslowLettuceProperties.class).toOptions();
                    assertEquals(TopologyOptions.Push.NONE, options.getPush());
                    assertEquals(5, options.getRefreshPeriod().toSeconds());
                    assertTrue(options.getHungAfter().isZero());
                    assertEquals(TopologyOptions.Sources.ANY, options.getSources());
                });
        application().withPropertyValues("unslow.lettuce.sample-size=0").run(context -> {
            Throwable failure = context.getStartupFailure();
            while (failure != null && failure.getCause() != null) {
                failure = failure.getCause();
            }
            assertEquals("Sample size must be 1 or more", failure == null ? null : failure.getMessage());
        });
    }

    @Test
    void whatIsNoClusterOrSwitchedOffStaysAsItIs() {
        application().withPropertyValues("unslow.lettuce.enabled=false").run(context -> assertEquals(
                LettuceConnectionFactory.class, context.getBean(LettuceConnectionFactory.class).getClass()));
        new ApplicationContextRunner()
                .withConfiguration(AutoConfigurations.of(SPRINGS, UnslowLettuceAutoConfiguration.class))
                .run(context -> assertFalse(
                        context.getBean(LettuceConnectionFactory.class) instanceof UnslowLettuceConnectionFactory));
    }

}
