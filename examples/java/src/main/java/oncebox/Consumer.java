package oncebox;

import io.nats.client.Connection;
import io.nats.client.ConsumerContext;
import io.nats.client.FetchConsumeOptions;
import io.nats.client.FetchConsumer;
import io.nats.client.JetStreamApiException;
import io.nats.client.api.AckPolicy;
import io.nats.client.api.ConsumerConfiguration;
import java.io.IOException;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Pulls messages from a durable consumer, and acknowledges each after its COMMIT. */
public final class Consumer {
    private static final Logger LOG = System.getLogger("oncebox");
    private static final int UNKNOWN_CONSUMER = 10014;
    /** How long a worker waits for messages, and notices late that it is to stop. */
    private static final long WAIT_MS = 1000;
    private static final Duration TROUBLE = Duration.ofSeconds(1);

    /**
     * @param filter a subject; null takes all of the stream
     * @param tenantHeader null, if all messages belong to one tenant
     * @param workers how many transactions there are at once
     * @param batch how many messages share one, at most 64; 1 if your handler locks rows for long
     * @param ackWait of a durable consumer that is not there yet: messages of a dead process come
     *     again after it
     */
    public record Settings(String stream, String durable, String filter, String tenantHeader, int workers, int batch,
            Duration ackWait) {
        public Settings(String stream, String durable, String filter, String tenantHeader, int workers, int batch) {
            this(stream, durable, filter, tenantHeader, workers, batch, Duration.ofSeconds(30));
        }

        public Settings {
            if (workers < 1 || workers > 64 || batch < 1 || batch > 64) {
                throw new IllegalArgumentException("workers " + workers + " and batch " + batch + " are not within 1 to 64");
            }
        }
    }

    private final Connection nats;
    private final Settings settings;
    private final Runner inbox;
    private final Set<io.nats.client.Message> held = ConcurrentHashMap.newKeySet();
    private final CountDownLatch ended;
    private final ScheduledExecutorService progress = Executors.newSingleThreadScheduledExecutor(task -> {
        Thread thread = new Thread(task, "in progress");
        thread.setDaemon(true);
        return thread;
    });
    private volatile boolean isStarted;
    private volatile boolean isStopping;
    private volatile boolean isInTrouble;

    public Consumer(Connection nats, Settings settings, Runner inbox) {
        this.nats = nats;
        this.settings = settings;
        this.inbox = inbox;
        ended = new CountDownLatch(settings.workers);
    }

    /** Makes the durable consumer, if there is none, and starts the workers. */
    public void start() throws IOException, JetStreamApiException {
        long third = Math.max(100, durable().getAckWait().toMillis() / 3);
        // Else JetStream would deliver a message again while its handler works.
        progress.scheduleAtFixedRate(() -> held.forEach(this::inProgress), third, third, TimeUnit.MILLISECONDS);
        isStarted = true;
        for (int worker = 0; worker < settings.workers; worker++) {
            new Thread(this::work, "consumer " + worker).start();
        }
    }

    /**
     * Ends when all workers have: after stop(), or because the client of NATS is closed for good.
     */
    public void await() throws InterruptedException {
        ended.await();
        if (!isStopping) {
            throw new IllegalStateException("the connection to NATS is closed for good: start this process again");
        }
    }

    /**
     * Finishes the messages under way and gives the others back; false, if that takes longer than
     * the grace.
     */
    public boolean stop(Duration grace) throws InterruptedException {
        isStopping = true;
        if (!isStarted) {
            return true;
        }
        boolean isDrained = ended.await(grace.toMillis(), TimeUnit.MILLISECONDS);
        progress.shutdownNow();
        try {
            nats.flush(Duration.ofSeconds(2));   // the acknowledgements
        } catch (TimeoutException | IllegalStateException away) {
            LOG.log(Level.WARNING, "acknowledgements are lost, these messages come again and are answered: {0}", away);
        }
        return isDrained;
    }

    private ConsumerConfiguration durable() throws IOException, JetStreamApiException {
        var management = nats.jetStreamManagement();
        ConsumerConfiguration found;
        try {
            found = management.getConsumerInfo(settings.stream, settings.durable).getConsumerConfiguration();
        } catch (JetStreamApiException error) {
            if (error.getApiErrorCode() != UNKNOWN_CONSUMER) {
                throw error;
            }
            var made = ConsumerConfiguration.builder().durable(settings.durable).ackPolicy(AckPolicy.Explicit);
            made.ackWait(settings.ackWait).filterSubject(settings.filter);
            found = management.addOrUpdateConsumer(settings.stream, made.build()).getConsumerConfiguration();
        }
        if (found.getAckPolicy() != AckPolicy.Explicit || found.getMaxDeliver() > 0 || found.isHeadersOnly()) {
            throw new IllegalStateException("consumer " + settings.durable + " of stream " + settings.stream
                    + " must pull with explicit acknowledgements, whole payloads and no limit of deliveries: change it, or delete it");
        }
        return found;
    }

    private void work() {
        try {
            while (!isStopping && nats.getStatus() != Connection.Status.CLOSED) {
                try {
                    List<io.nats.client.Message> messages = pull();
                    held.addAll(messages);
                    try {
                        deal(messages);
                    } finally {
                        messages.forEach(held::remove);
                    }
                } catch (Exception error) {
                    trouble("a pull of consumer " + settings.durable, error);
                    Thread.sleep(TROUBLE.toMillis());
                }
            }
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        } finally {
            ended.countDown();
        }
    }

    /** Those that are there; else the first that comes. */
    private List<io.nats.client.Message> pull() throws Exception {
        ConsumerContext from = nats.getConsumerContext(settings.stream, settings.durable);
        var options = FetchConsumeOptions.builder().maxMessages(settings.batch).noWaitExpiresIn(WAIT_MS).build();
        List<io.nats.client.Message> messages = new ArrayList<>();
        try (FetchConsumer pulled = from.fetch(options)) {
            for (var message = pulled.nextMessage(); message != null; message = pulled.nextMessage()) {
                messages.add(message);
            }
        }
        return messages;
    }

    /**
     * New messages share a transaction; all others, and all of a batch that failed, get one each.
     */
    private void deal(List<io.nats.client.Message> received) throws InterruptedException {
        Map<Message, io.nats.client.Message> sources = new IdentityHashMap<>();
        List<Message> alone = new ArrayList<>();
        List<Message> fresh = new ArrayList<>();
        for (var each : received) {
            Message message = Message.of(each, settings.tenantHeader);
            sources.put(message, each);
            (message.key() == null || message.deliveries() > 1 ? alone : fresh).add(message);
        }
        if (fresh.size() > 1) {
            List<Message> left = inbox.runBatch(fresh);
            fresh.removeAll(left);
            fresh.forEach(message -> end(sources.get(message), null));
            fresh = left;
        }
        alone.addAll(fresh);
        for (Message message : alone) {
            end(sources.get(message), isStopping ? Duration.ZERO : run(message));
        }
    }

    private Duration run(Message message) throws InterruptedException {
        try {
            Duration again = inbox.run(message);
            isInTrouble = false;
            return again;
        } catch (Exception error) {
            if (error instanceof InterruptedException stopped) {
                throw stopped;
            }
            trouble("message " + message.sequence() + " of stream " + message.stream(), error);
            return TROUBLE;
        }
    }

    private void end(io.nats.client.Message message, Duration again) {
        held.remove(message);
        try {
            if (again == null) {
                message.ack();
            } else {
                message.nakWithDelay(again);
            }
        } catch (IllegalStateException away) {
            trouble("an acknowledgement", away);   // It comes again, and is answered.
        }
    }

    private void inProgress(io.nats.client.Message message) {
        try {
            message.inProgress();
        } catch (IllegalStateException away) {
            // JetStream delivers it again, and its key is in flight.
        }
    }

    /** Said once until a message succeeds. */
    private void trouble(String what, Exception error) {
        LOG.log(isInTrouble ? Level.DEBUG : Level.WARNING, "{0} is put off, and tried again: {1}", what, Inbox.reason(error));
        isInTrouble = true;
    }
}
