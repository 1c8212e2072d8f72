package io.github.unslow.lettuce;

import io.lettuce.core.RedisCommandExecutionException;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;

/** What an error of an answer means. */
final class Failures {

    private Failures() {
    }

    static Throwable cause(Throwable error) {
        Throwable cause = error;
        while ((cause instanceof CompletionException || cause instanceof ExecutionException) && cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause;
    }

    /** Whether the node answered, with an error; "max number of clients reached" at the handshake is one as well. */
    static boolean isReply(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof RedisCommandExecutionException) {
                return true;
            }
        }
        return false;
    }

    /** Whether the node answered that it does not know the command, or that the user may not use it. */
    static boolean isRefusal(Throwable error) {
        Throwable cause = cause(error);
        if (!(cause instanceof RedisCommandExecutionException) || cause.getMessage() == null) {
            return false;
        }
        String text = cause.getMessage();
        return text.startsWith("NOPERM") || text.startsWith("ERR unknown");
    }

    /** In a few words, without anything that a server wrote but an error's first word. */
    static String words(Throwable error) {
        Throwable cause = cause(error);
        if (cause instanceof RedisCommandExecutionException && cause.getMessage() != null) {
            return cause.getMessage().split(" ", 2)[0];
        }
        return cause.getClass().getSimpleName();
    }

}
