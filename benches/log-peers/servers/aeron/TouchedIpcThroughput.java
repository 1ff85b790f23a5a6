import io.aeron.Aeron;
import io.aeron.ExclusivePublication;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.FragmentHandler;
import org.agrona.concurrent.IdleStrategy;
import org.agrona.concurrent.UnsafeBuffer;
import org.agrona.concurrent.YieldingIdleStrategy;

import java.nio.ByteBuffer;
import java.util.concurrent.locks.LockSupport;

/**
 * Aeron's own {@code EmbeddedExclusiveIpcThroughput} with a subscriber that touches every byte: it adds up all words of
 * each message. One thread publishes, one reads, and the media driver has one. Prints one line each second.
 */
public final class TouchedIpcThroughput {
    private static final int LENGTH = Integer.getInteger("aeron.sample.messageLength", 1024);
    private static final int FRAGMENTS_AT_ONCE = 256;
    private static final String CHANNEL = "aeron:ipc";
    private static final int STREAM = 1;

    /** Written by the reading thread only; the last one is there so that no sum can be left out. */
    private static volatile long messages;
    private static volatile long sum;

    public static void main(final String[] none) {
        final MediaDriver.Context driver = new MediaDriver.Context()
            .threadingMode(ThreadingMode.SHARED)
            .sharedIdleStrategy(new YieldingIdleStrategy())
            .dirDeleteOnStart(true)
            .dirDeleteOnShutdown(true);
        try (MediaDriver media = MediaDriver.launchEmbedded(driver);
            Aeron aeron = Aeron.connect(new Aeron.Context().aeronDirectoryName(media.aeronDirectoryName()));
            Subscription subscription = aeron.addSubscription(CHANNEL, STREAM);
            ExclusivePublication publication = aeron.addExclusivePublication(CHANNEL, STREAM)) {
            start("reads", () -> read(subscription));
            start("publishes", () -> publish(publication));
            report();
        }
    }

    private static void start(final String name, final Runnable work) {
        final Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
    }

    private static void publish(final ExclusivePublication publication) {
        final UnsafeBuffer message = new UnsafeBuffer(ByteBuffer.allocateDirect(LENGTH));
        message.setMemory(0, LENGTH, (byte)0x5a);
        final IdleStrategy idle = new YieldingIdleStrategy();
        while (true) {
            idle.reset();
            while (publication.offer(message, 0, LENGTH) < 0) {
                idle.idle();
            }
        }
    }

    private static void read(final Subscription subscription) {
        // Plain fields of this thread, published once for each poll.
        final long[] seen = new long[2];
        final FragmentHandler touch = (buffer, offset, length, header) -> {
            long words = 0;
            final int whole = offset + (length & ~7);
            int at = offset;
            for (; at < whole; at += 8) {
                words += buffer.getLong(at);
            }
            for (; at < offset + length; at++) {
                words += buffer.getByte(at);
            }
            seen[0]++;
            seen[1] += words;
        };
        final IdleStrategy idle = new YieldingIdleStrategy();
        while (true) {
            idle.idle(subscription.poll(touch, FRAGMENTS_AT_ONCE));
            messages = seen[0];
            sum = seen[1];
        }
    }

    private static void report() {
        long before = System.nanoTime();
        long count = messages;
        while (true) {
            LockSupport.parkNanos(1_000_000_000L);
            final long now = System.nanoTime();
            final long all = messages;
            final long millis = (now - before) / 1_000_000;
            if (millis < 1000) {
                continue;
            }
            System.out.printf("Duration %,dms - %,d messages - %,d payload bytes%n", millis, all - count, (all - count) * LENGTH);
            before = now;
            count = all;
        }
    }
}
