package io.github.unslow.lettuce.boot;

import io.github.unslow.lettuce.UnslowRedisClusterClient;
import java.util.IdentityHashMap;
import java.util.Map;
import org.springframework.beans.DirectFieldAccessor;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.beans.factory.config.DestructionAwareBeanPostProcessor;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

/**
 * Puts {@link UnslowLettuceConnectionFactory} in the place of Spring Data Redis' own, for clusters; everything that Spring
 * Boot, or the application, has set on it is kept. Templates, repositories and caches do not notice.
 */
@AutoConfiguration
@ConditionalOnClass({ LettuceConnectionFactory.class, UnslowRedisClusterClient.class })
@ConditionalOnProperty(prefix = "unslow.lettuce", name = "enabled", matchIfMissing = true)
@EnableConfigurationProperties(UnslowLettuceProperties.class)
public class UnslowLettuceAutoConfiguration {

    /**
     * @param properties read when the first factory is made
     * @return what replaces the factories.
     */
    @Bean
    static BeanPostProcessor unslowLettuceConnectionFactories(ObjectProvider<UnslowLettuceProperties> properties) {
        return new DestructionAwareBeanPostProcessor() {

            /** By the bean that Spring will destroy: the one it made. */
            private final Map<Object, UnslowLettuceConnectionFactory> replacements = new IdentityHashMap<>();

            @Override
            public void postProcessBeforeDestruction(Object bean, String name) {
                UnslowLettuceConnectionFactory replacement = replacements.remove(bean);
                if (replacement != null) {
                    replacement.destroy();
                }
            }

            @Override
            public boolean requiresDestruction(Object bean) {
                return replacements.containsKey(bean);
            }

            @Override
            public Object postProcessBeforeInitialization(Object bean, String name) {
                // A subclass is somebody's own work.
                if (bean.getClass() == LettuceConnectionFactory.class && ((LettuceConnectionFactory) bean).isClusterAware()) {
                    UnslowLettuceConnectionFactory replacement = replaced((LettuceConnectionFactory) bean, properties.getObject());
                    replacements.put(bean, replacement);
                    return replacement;
                }
                return bean;
            }

        };
    }

    private static UnslowLettuceConnectionFactory replaced(LettuceConnectionFactory from, UnslowLettuceProperties properties) {
        UnslowLettuceConnectionFactory to = new UnslowLettuceConnectionFactory(from.getClusterConfiguration(),
                from.getClientConfiguration(), properties.toOptions());
        to.setShareNativeConnection(from.getShareNativeConnection());
        to.setValidateConnection(from.getValidateConnection());
        to.setEagerInitialization(from.getEagerInitialization());
        to.setConvertPipelineAndTxResults(from.getConvertPipelineAndTxResults());
        to.setAutoStartup(from.isAutoStartup());
        to.setEarlyStartup(from.isEarlyStartup());
        to.setPhase(from.getPhase());
        // These two have no getters.
        DirectFieldAccessor source = new DirectFieldAccessor(from);
        DirectFieldAccessor target = new DirectFieldAccessor(to);
        for (String field : new String[] { "executor", "pipeliningFlushPolicy" }) {
            if (source.isReadableProperty(field) && source.getPropertyValue(field) != null) {
                target.setPropertyValue(field, source.getPropertyValue(field));
            }
        }
        return to;
    }

}
