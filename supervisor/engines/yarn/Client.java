package tfsup.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.ConnectException;
import java.net.NoRouteToHostException;
import java.net.SocketTimeoutException;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.stream.Collectors;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.io.DataOutputBuffer;
import org.apache.hadoop.security.AccessControlException;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.ApplicationConstants;
import org.apache.hadoop.yarn.api.protocolrecords.GetApplicationsRequest;
import org.apache.hadoop.yarn.api.protocolrecords.UpdateApplicationTimeoutsRequest;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationReport;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ApplicationTimeout;
import org.apache.hadoop.yarn.api.records.ApplicationTimeoutType;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ContainerReport;
import org.apache.hadoop.yarn.api.records.ContainerState;
import org.apache.hadoop.yarn.api.records.LocalResource;
import org.apache.hadoop.yarn.api.records.LocalResourceType;
import org.apache.hadoop.yarn.api.records.LocalResourceVisibility;
import org.apache.hadoop.yarn.api.records.QueueInfo;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.api.records.SignalContainerCommand;
import org.apache.hadoop.yarn.api.records.URL;
import org.apache.hadoop.yarn.api.records.YarnApplicationState;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.apache.hadoop.yarn.client.api.YarnClientApplication;
import org.apache.hadoop.yarn.client.util.YarnClientUtils;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.ApplicationNotFoundException;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.util.Times;
import org.ietf.jgss.GSSException;

/**
 * Speaks with a ResourceManager for supervisor/engines/yarn/yarn.py: reads requests and writes replies, each a line of
 * JSON. A reply has "ok", or "error", whether it is "unreachable", and whether Java has found "no_ticket" of Kerberos.
 * When the process that asks has ended, however, a submission that is under way is taken back.
 */
public final class Client {
    static final String PREFIX = "tfsup:";
    private static final String TYPE = "tf-supervisor";
    private static final String STAGED = "staged-";
    private static final String NOTICE = "notice-";
    private static final String GPU = "yarn.io/gpu";
    private static final int MASTER_MIB = 256;
    private static final long FAILURES_COUNT_MS = 600_000;
    private static final long UNKNOWN_MS = 24 * 3600 * 1000L;
    /** An application that is to leave or to end ends by YARN's own hand so long after its agent should have. */
    private static final long LATE_S = 60;
    private static final long ENDING_S = 30;
    private static final ObjectMapper JSON = new ObjectMapper();
    /** What takes the place of a request when there are no more. */
    private static final String NO_MORE = "";
    /** Whether the process that asks has ended. */
    private static volatile boolean isAlone;

    private final YarnConfiguration conf = new YarnConfiguration();
    private final YarnClient yarn;
    /** What containers were told. YARN loses a signal to one that has not begun yet, so each look tells it again. */
    private final Map<ApplicationId, SignalContainerCommand> told = new HashMap<>();
    private final String user = UserGroupInformation.getCurrentUser().getShortUserName();

    private Client() throws IOException {
        if (lacksTicket()) {
            // Hadoop's client would try for 15 s, and say that it "cannot authenticate".
            throw new AccessControlException("Kerberos: there is no ticket");
        }
        // Hadoop's own patience is 15 minutes; a person waits for these replies.
        conf.setInt("yarn.resourcemanager.connect.max-wait.ms", 10_000);
        conf.setInt("yarn.resourcemanager.connect.retry-interval.ms", 1_000);
        conf.setInt("ipc.client.connect.timeout", 5_000);
        conf.setInt("ipc.client.connect.max.retries", 0);
        conf.setInt("ipc.client.connect.max.retries.on.timeouts", 0);
        conf.setInt("yarn.client.application-client-protocol.poll-interval-ms", 50);
        conf.setBoolean("yarn.client.load.resource-types.from-server", true);
        yarn = YarnClient.createYarnClient();
        yarn.init(conf);
        yarn.start();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream replies = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        BlockingQueue<String> requests = new LinkedBlockingQueue<>();
        Thread reading = new Thread(() -> read(requests));
        reading.setDaemon(true);
        reading.start();
        Client client = null;
        for (String line = requests.take(); !line.equals(NO_MORE); line = requests.take()) {
            ObjectNode reply = JSON.createObjectNode();
            try {
                client = client == null ? new Client() : client;
                reply.set("ok", client.answer(JSON.readTree(line)));
            } catch (Exception error) {
                error.printStackTrace();
                reply.put("error", reason(error));
                reply.put("unreachable", isUnreachable(error));
                reply.put("no_ticket", lacksTicket());
            }
            replies.println(JSON.writeValueAsString(reply));
        }
        System.exit(0);
    }

    /** Read requests until the process that makes them has ended. */
    private static void read(BlockingQueue<String> requests) {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                requests.add(line);
            }
        } catch (IOException error) {
            error.printStackTrace();
        } finally {
            isAlone = true;
            requests.add(NO_MORE);
        }
    }

    /** Queue and copy nothing for a command that has ended: nobody would know of it. */
    private static void requireCommand() throws IOException {
        if (isAlone) {
            throw new IOException("the command that asked for these agents has ended");
        }
    }

    private JsonNode answer(JsonNode request) throws Exception {
        switch (request.get("verb").asText()) {
            case "submit":
                return submit(request);
            case "list":
                return list(request.path("pool").asText());
            case "origin":
                return JSON.valueToTree(cluster() + ":" + user);
            case "tidy":
                tidy(request.get("pool").asText());
                return JSON.createArrayNode();
            case "notify":
                return each(request.get("ids"), this::leave);
            case "cancel":
                return each(request.get("ids"), id -> cancel(id, request.get("waiting_only").asBoolean()));
            default:
                throw new IllegalArgumentException("there is no verb " + request.get("verb"));
        }
    }

    private interface Act {
        void on(ApplicationId id) throws Exception;
    }

    /** Do something with each agent. YARN refuses to signal one that has ended since it was looked at; the others stay told. */
    private static JsonNode each(JsonNode ids, Act act) throws Exception {
        for (JsonNode id : ids) {
            try {
                act.on(ApplicationId.fromString(id.asText()));
            } catch (YarnException over) {
                over.printStackTrace();
            }
        }
        return JSON.createArrayNode();
    }

    /**
     * Queue applications, all of them or none, with the files of "files" or those of the application "like". What is queued
     * and copied is taken back also if the process that asks ends meanwhile.
     */
    private JsonNode submit(JsonNode request) throws Exception {
        Path staged;
        if (request.has("like")) {
            ApplicationReport like = yarn.getApplicationReport(ApplicationId.fromString(request.get("like").asText()));
            staged = new Path(staging(), tag(like, STAGED));
        } else {
            tidy("");
            String number = UUID.randomUUID().toString().replace("-", "");
            staged = new Path(staging(), request.get("pool").asText() + "-" + number);
        }
        FileSystem files = staged.getFileSystem(conf);
        List<ApplicationId> made = new ArrayList<>();
        try {
            if (!request.has("like")) {
                stage(files, staged, request.get("files"));
            }
            JsonNode order;
            try (InputStream stream = files.open(new Path(staged, "order.json"))) {
                order = JSON.readTree(stream);
            }
            for (int left = request.get("agents").asInt(); left > 0; left--) {
                requireCommand();
                YarnClientApplication application = yarn.createApplication();
                check(order, application.getNewApplicationResponse().getMaximumResourceCapability());
                made.add(yarn.submitApplication(context(application, order, files, staged)));
            }
            requireCommand();
        } catch (Exception error) {
            for (ApplicationId id : made) {
                yarn.killApplication(id, "another agent of its pool could not be queued");
            }
            if (!request.has("like")) {
                files.delete(staged, true);
            }
            throw error;
        }
        ArrayNode ids = JSON.createArrayNode();
        made.forEach(id -> ids.add(id.toString()));
        return ids;
    }

    private void check(JsonNode order, Resource most) throws YarnException {
        long gpus = order.get("gpus").asLong();
        ResourceInformation known =
                Arrays.stream(most.getResources()).filter(each -> each.getName().equals(GPU)).findAny().orElse(null);
        if (gpus > 0 && known == null) {
            throw new YarnException("this YARN has no resource " + GPU);
        }
        if (order.get("memory_mib").asLong() > most.getMemorySize() || order.get("cpus").asInt() > most.getVirtualCores()
                || (gpus > 0 && gpus > known.getValue())) {
            throw new YarnException("an agent asks for more than YARN gives to one container, which is " + most);
        }
    }

    private ApplicationSubmissionContext context(
            YarnClientApplication application, JsonNode order, FileSystem files, Path staged) throws Exception {
        Map<String, LocalResource> resources = new HashMap<>();
        Map<String, String> environment = new HashMap<>();
        for (FileStatus status : files.listStatus(staged)) {
            String name = status.getPath().getName();
            if (Arrays.asList("master.jar", "order.json").contains(name)) {
                resources.put(name, resource(status.getPath().toUri().toString(), status.getLen(), status.getModificationTime()));
            }
            environment.put(Master.variable(name),
                    status.getPath().toUri() + " " + status.getLen() + " " + status.getModificationTime());
        }
        List<String> classpath = new ArrayList<>(Collections.singletonList("./master.jar"));
        classpath.addAll(Arrays.asList(conf.getTrimmedStrings(
                YarnConfiguration.YARN_APPLICATION_CLASSPATH, YarnConfiguration.DEFAULT_YARN_APPLICATION_CLASSPATH)));
        environment.put("CLASSPATH", String.join(":", classpath));
        String command = "exec $JAVA_HOME/bin/java -Xmx64m -Xss512k -XX:+UseSerialGC -XX:ReservedCodeCacheSize=32m "
                + "-XX:CompressedClassSpaceSize=32m -XX:TieredStopAtLevel=1 -XX:-UsePerfData " + Master.class.getName()
                + " 1>" + ApplicationConstants.LOG_DIR_EXPANSION_VAR + "/stdout 2>"
                + ApplicationConstants.LOG_DIR_EXPANSION_VAR + "/stderr";
        ApplicationSubmissionContext context = application.getApplicationSubmissionContext();
        context.setApplicationName(PREFIX + order.get("pool").asText());
        context.setApplicationType(TYPE);
        context.setApplicationTags(new HashSet<>(
                Arrays.asList(STAGED + staged.getName(), NOTICE + order.get("notice_s").asInt())));
        if (!order.get("queue").asText().isEmpty()) {
            context.setQueue(order.get("queue").asText());
        }
        // A pool of an earlier release has none.
        if (!order.path("constraint").asText().isEmpty()) {
            context.setNodeLabelExpression(order.get("constraint").asText());
        }
        context.setResource(Resource.newInstance(MASTER_MIB, 1));
        // An ApplicationMaster that fails takes no agent with it.
        context.setKeepContainersAcrossApplicationAttempts(true);
        context.setAttemptFailuresValidityInterval(FAILURES_COUNT_MS);
        context.setAMContainerSpec(ContainerLaunchContext.newInstance(
                resources, environment, Collections.singletonList(command), null, tokens(files), null));
        return context;
    }

    /** What the NodeManagers need to fetch the files where HDFS has Kerberos. */
    private ByteBuffer tokens(FileSystem files) throws Exception {
        if (!UserGroupInformation.isSecurityEnabled()) {
            return null;
        }
        Credentials credentials = new Credentials();
        files.addDelegationTokens(YarnClientUtils.getRmPrincipal(conf), credentials);
        DataOutputBuffer buffer = new DataOutputBuffer();
        credentials.writeTokenStorageToStream(buffer);
        return ByteBuffer.wrap(buffer.getData(), 0, buffer.getLength());
    }

    /** This user's directory for the pools of this YARN: others may have their files in the same file system. */
    private Path staging() throws IOException {
        FileSystem files = FileSystem.get(conf);
        return files.makeQualified(new Path(files.getHomeDirectory(), ".tfsup/yarn/" + cluster()));
    }

    /** The name of this YARN. */
    private String cluster() {
        String cluster = conf.get(YarnConfiguration.RM_CLUSTER_ID, conf.get(YarnConfiguration.RM_ADDRESS, "yarn"));
        return cluster.replaceAll("[^A-Za-z0-9.-]", "_");
    }

    /** Make a directory with these files. */
    private static void stage(FileSystem files, Path staged, JsonNode local) throws IOException {
        FileSystem.mkdirs(files, staged, new FsPermission((short) 0700));
        Iterator<String> names = local.fieldNames();
        while (names.hasNext()) {
            requireCommand();
            String name = names.next();
            files.copyFromLocalFile(new Path(local.get(name).asText()), new Path(staged, name));
        }
    }

    /**
     * Remove the files that no application needs any more: those of this pool, and old ones of whose pool nothing is known.
     * What is not old may be another client's, which has queued no application yet.
     */
    private void tidy(String pool) throws Exception {
        Set<String> needed = new HashSet<>();
        Set<String> over = new HashSet<>();
        for (ApplicationReport report : applications()) {
            if (report.getFinishTime() == 0) {
                needed.add(tag(report, STAGED));
            } else if (report.getName().equals(PREFIX + pool)) {
                over.add(tag(report, STAGED));
            }
        }
        Path staging = staging();
        FileSystem files = staging.getFileSystem(conf);
        long old = System.currentTimeMillis() - UNKNOWN_MS;
        for (FileStatus each : files.exists(staging) ? files.listStatus(staging) : new FileStatus[0]) {
            String name = each.getPath().getName();
            if (!needed.contains(name) && (over.contains(name) || each.getModificationTime() < old)) {
                files.delete(each.getPath(), true);
            }
        }
    }

    /** The applications of pools of this user. */
    private List<ApplicationReport> applications() throws Exception {
        GetApplicationsRequest asked = GetApplicationsRequest.newInstance(
                Collections.singleton(TYPE), EnumSet.allOf(YarnApplicationState.class));
        asked.setUsers(Collections.singleton(user));
        return yarn.getApplications(asked).stream()
                .filter(each -> each.getName().startsWith(PREFIX) && each.getUser().equals(user))
                .collect(Collectors.toList());
    }

    private JsonNode list(String pool) throws Exception {
        ArrayNode rows = JSON.createArrayNode();
        Map<String, Double> used = new TreeMap<>();
        for (ApplicationReport report : applications()) {
            if (!report.getName().startsWith(PREFIX + pool)) {
                continue;
            }
            ObjectNode row = rows.addObject();
            row.put("id", report.getApplicationId().toString());
            row.put("name", report.getName());
            row.put("state", report.getYarnApplicationState().toString());
            row.put("final", report.getFinalApplicationStatus().toString());
            row.put("diagnostics", String.valueOf(report.getDiagnostics()));
            row.put("finished_ms", report.getFinishTime());
            row.put("queue", report.getQueue());
            row.put("notice_s", Long.parseLong(tag(report, NOTICE)));
            ApplicationTimeout timeout = report.getApplicationTimeouts().get(ApplicationTimeoutType.LIFETIME);
            row.put("left_s", timeout == null ? -1 : timeout.getRemainingTime());
            ContainerReport agent = agentOf(report);
            if (agent != null) {
                row.put("host", agent.getAssignedNode().getHost());
                tellAgain(report.getApplicationId(), agent);
            } else if (report.getYarnApplicationState() == YarnApplicationState.RUNNING && !isLabelled(report)) {
                if (!used.containsKey(report.getQueue())) {
                    QueueInfo queue = yarn.getQueueInfo(report.getQueue());
                    used.put(report.getQueue(), queue == null ? -1.0 : queue.getCurrentCapacity() * 100.0);
                }
                row.put("queue_used", used.get(report.getQueue()));
            }
        }
        return rows;
    }

    /** Whether it asks for machines with a label. Of their room the share of its queue says nothing. */
    private static boolean isLabelled(ApplicationReport report) {
        String label = report.getAppNodeLabelExpression();
        // YARN names the lack of one in angle brackets.
        return label != null && !label.isEmpty() && !label.startsWith("<");
    }

    /** The container of an application's agent; null while it waits for one, and when it is over. */
    private ContainerReport agentOf(ApplicationReport report) throws Exception {
        if (report.getYarnApplicationState() != YarnApplicationState.RUNNING) {
            return null;
        }
        try {
            for (ContainerReport each : yarn.getContainers(report.getCurrentApplicationAttemptId())) {
                if (each.getPriority().getPriority() == Master.PRIORITY
                        && each.getContainerState() != ContainerState.COMPLETE) {
                    return each;
                }
            }
        } catch (YarnException over) {
            return null;
        }
        return null;
    }

    /** Tell an agent that runs to leave. YARN ends it if it stays too long, also when nobody looks any more. */
    private void leave(ApplicationId id) throws Exception {
        ApplicationReport report = live(id);
        ContainerReport agent = report == null ? null : agentOf(report);
        if (agent != null) {
            limit(report, Long.parseLong(tag(report, NOTICE)) + LATE_S);
            // The one signal of YARN's that is not meant to end a process: SIGQUIT.
            tell(id, agent, SignalContainerCommand.OUTPUT_THREAD_DUMP);
        }
    }

    private void cancel(ApplicationId id, boolean waitingOnly) throws Exception {
        ApplicationReport report = live(id);
        if (report == null) {
            return;
        }
        ContainerReport agent = agentOf(report);
        if (agent == null) {
            yarn.killApplication(id, "cancelled before it had an agent");
        } else if (!waitingOnly) {
            // A kill of the application would give its agent 250 ms: too few to end its tasks.
            limit(report, ENDING_S);
            tell(id, agent, SignalContainerCommand.GRACEFUL_SHUTDOWN);
        }
    }

    private void tell(ApplicationId id, ContainerReport agent, SignalContainerCommand command) throws Exception {
        told.put(id, command);
        yarn.signalToContainer(agent.getContainerId(), command);
    }

    private void tellAgain(ApplicationId id, ContainerReport agent) throws IOException {
        try {
            if (told.containsKey(id)) {
                yarn.signalToContainer(agent.getContainerId(), told.get(id));
            }
        } catch (YarnException over) {
            // It has ended since it was looked at.
            over.printStackTrace();
        }
    }

    private void limit(ApplicationReport report, long seconds) throws Exception {
        ApplicationTimeout timeout = report.getApplicationTimeouts().get(ApplicationTimeoutType.LIFETIME);
        if (timeout == null || timeout.getRemainingTime() < 0 || timeout.getRemainingTime() > seconds) {
            String until = Times.formatISO8601(System.currentTimeMillis() + seconds * 1000);
            yarn.updateApplicationTimeouts(UpdateApplicationTimeoutsRequest.newInstance(
                    report.getApplicationId(), Collections.singletonMap(ApplicationTimeoutType.LIFETIME, until)));
        }
    }

    private ApplicationReport live(ApplicationId id) throws Exception {
        try {
            ApplicationReport report = yarn.getApplicationReport(id);
            return report.getFinishTime() > 0 ? null : report;
        } catch (ApplicationNotFoundException over) {
            return null;
        }
    }

    private static String tag(ApplicationReport report, String prefix) {
        Set<String> tags = report.getApplicationTags();
        return tags.stream().filter(each -> each.startsWith(prefix)).findAny()
                .map(each -> each.substring(prefix.length())).orElse("0");
    }

    static LocalResource resource(String uri, long size, long modified) {
        return LocalResource.newInstance(URL.fromURI(java.net.URI.create(uri)), LocalResourceType.FILE,
                LocalResourceVisibility.APPLICATION, size, modified);
    }

    /** Whether Hadoop has Kerberos, and Java has found no ticket that is valid now. */
    private static boolean lacksTicket() {
        try {
            return UserGroupInformation.isSecurityEnabled() && !UserGroupInformation.getLoginUser().hasKerberosCredentials();
        } catch (IOException | IllegalArgumentException wrong) {
            // Kerberos has no configuration; that is what is told.
            return false;
        }
    }

    /** What Kerberos says, where it is the cause; else the first line: the ResourceManager adds its stack. */
    private static String reason(Throwable error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (each instanceof GSSException) {
                return "Kerberos: " + each.getMessage();
            }
        }
        return (error.getMessage() == null ? error.toString() : error.getMessage()).split("\n")[0];
    }

    private static boolean isUnreachable(Throwable error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (each instanceof ConnectException || each instanceof SocketTimeoutException
                    || each instanceof NoRouteToHostException || each instanceof UnknownHostException) {
                return true;
            }
        }
        return false;
    }
}
