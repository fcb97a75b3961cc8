package tfsup.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.io.DataOutputBuffer;
import org.apache.hadoop.net.NetworkTopology;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.yarn.api.ApplicationConstants;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterResponse;
import org.apache.hadoop.yarn.api.protocolrecords.ResourceLocalizationRequest;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerExitStatus;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.LocalResource;
import org.apache.hadoop.yarn.api.records.NodeReport;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.api.records.PreemptionContainer;
import org.apache.hadoop.yarn.api.records.PreemptionMessage;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.UpdatedContainer;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.NMClient;
import org.apache.hadoop.yarn.client.api.async.AMRMClientAsync;
import org.apache.hadoop.yarn.client.api.impl.ContainerManagementProtocolProxy;
import org.apache.hadoop.yarn.client.api.impl.ContainerManagementProtocolProxy.ContainerManagementProtocolProxyData;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.security.AMRMTokenIdentifier;
import org.apache.hadoop.yarn.util.RackResolver;

/**
 * The ApplicationMaster of one agent: asks for a container, runs container.py in it, and asks for another one when YARN
 * takes it away. It passes YARN's notices on, as a file "notice" in the container's directory.
 */
public final class Master extends AMRMClientAsync.AbstractCallbackHandler {
    /** The priority of an agent's container; that of an ApplicationMaster is 0. */
    static final int PRIORITY = 1;
    /** The variable of a container that names its rack. */
    private static final String RACK = "TFSUP_RACK";
    private static final int HEARTBEAT_MS = 1_000;
    private static final int MOST_STARTS_IN_VAIN = 10;
    /** Exit statuses after which the agent gets another container. The last is container.py's, after a notice. */
    private static final Set<Integer> AGAIN = new HashSet<>(Arrays.asList(
            ContainerExitStatus.ABORTED, ContainerExitStatus.DISKS_FAILED, ContainerExitStatus.PREEMPTED,
            ContainerExitStatus.KILLED_BY_RESOURCEMANAGER, ContainerExitStatus.KILLED_AFTER_APP_COMPLETION, 75));

    private final JsonNode order;
    private final YarnConfiguration conf;
    private final AMRMClientAsync<ContainerRequest> rm;
    private final NMClient nm = NMClient.createNMClient();
    private final ContainerManagementProtocolProxy nodes;
    private final ContainerRequest request;
    private final ContainerId own = ContainerId.fromString(System.getenv("CONTAINER_ID"));
    private Container agent;
    private boolean asked;
    private boolean warned;
    private int inVain;
    private FinalApplicationStatus outcome;
    private String why = "";

    private Master(JsonNode order, YarnConfiguration conf) {
        this.order = order;
        this.conf = conf;
        nodes = new ContainerManagementProtocolProxy(conf);
        rm = AMRMClientAsync.createAMRMClientAsync(HEARTBEAT_MS, this);
        rm.init(conf);
        rm.start();
        nm.cleanupRunningContainersOnStop(false);
        nm.init(conf);
        nm.start();
        Resource wanted = Resource.newInstance(order.get("memory_mib").asLong(), order.get("cpus").asInt());
        if (order.get("gpus").asLong() > 0) {
            wanted.setResourceValue("yarn.io/gpu", order.get("gpus").asLong());
        }
        request = new ContainerRequest(wanted, null, null, Priority.newInstance(PRIORITY));
    }

    public static void main(String[] arguments) throws Exception {
        YarnConfiguration conf = new YarnConfiguration();
        conf.setBoolean("yarn.client.load.resource-types.from-server", true);
        JsonNode order = new ObjectMapper().readTree(new File("order.json"));
        forgetTokens();
        new Master(order, conf).run();
        System.exit(0);
    }

    /** Tokens are in this process from its login on. Tasks of the same user must not find their file. */
    private static void forgetTokens() throws IOException {
        UserGroupInformation.getLoginUser();
        String file = System.getenv(ApplicationConstants.CONTAINER_TOKEN_FILE_ENV_NAME);
        try {
            if (file != null) {
                Files.deleteIfExists(Paths.get(file));
            }
        } catch (IOException error) {
            say("tasks can read the tokens in " + file + ", which cannot be removed: " + error);
        }
    }

    private synchronized void run() throws Exception {
        RegisterApplicationMasterResponse there = rm.registerApplicationMaster("", -1, "");
        onContainersReceivedFromPreviousAttempts(there.getContainersFromPreviousAttempts());
        if (agent == null) {
            ask();
        }
        while (outcome == null) {
            wait();
        }
        say("over: " + outcome + " " + why);
        rm.unregisterApplicationMaster(outcome, why, "");
    }

    private void ask() {
        if (!asked) {
            rm.addContainerRequest(request);
            asked = true;
        }
    }

    private void withdraw() {
        if (asked) {
            rm.removeContainerRequest(request);
            asked = false;
        }
    }

    /**
     * Go on with the agent that an earlier attempt has started. A ResourceManager that has begun anew tells of it when its
     * NodeManager has registered, which may be after this attempt has started another. The one that runs longer stays.
     */
    @Override
    public synchronized void onContainersReceivedFromPreviousAttempts(List<Container> found) {
        for (Container each : found) {
            if (each.getPriority().getPriority() != PRIORITY || (agent != null && each.getId().equals(agent.getId()))) {
                continue;
            }
            if (outcome != null || (agent != null && agent.getId().compareTo(each.getId()) < 0)) {
                rm.releaseAssignedContainer(each.getId());
                continue;
            }
            say("the agent runs in " + each.getId() + " since before this attempt");
            withdraw();
            if (agent != null) {
                say("the one in " + agent.getId() + " is ended again");
                rm.releaseAssignedContainer(agent.getId());
            }
            agent = each;
            warned = false;
        }
    }

    private void end(FinalApplicationStatus how, String reason) {
        outcome = how;
        why = reason;
        notifyAll();
    }

    @Override
    public synchronized void onContainersAllocated(List<Container> given) {
        for (Container each : given) {
            if (agent != null || outcome != null) {
                rm.releaseAssignedContainer(each.getId());
                continue;
            }
            withdraw();
            try {
                nm.startContainer(each, launch(each.getNodeId().getHost()));
                agent = each;
                warned = false;
                say("the agent is started in " + each.getId() + " on " + each.getNodeId());
                rm.updateTrackingUrl("http://" + each.getNodeHttpAddress() + "/node/containerlogs/" + each.getId() + "/"
                        + System.getenv("USER"));
            } catch (Exception error) {
                say("the agent cannot be started on " + each.getNodeId() + ": " + error);
                rm.releaseAssignedContainer(each.getId());
                inVain++;
                if (inVain < MOST_STARTS_IN_VAIN) {
                    ask();
                } else {
                    end(FinalApplicationStatus.FAILED, "the agent could not be started: " + error.getMessage());
                }
            }
        }
    }

    private ContainerLaunchContext launch(String host) throws Exception {
        Map<String, LocalResource> files = new HashMap<>();
        for (String name : Arrays.asList("container.py", "order.json", "archive")) {
            if (System.getenv(variable(name)) != null) {
                files.put(name, staged(name));
            }
        }
        String logs = ApplicationConstants.LOG_DIR_EXPANSION_VAR;
        String command = "exec " + order.get("python").asText() + " -P container.py 1>" + logs + "/stdout 2>" + logs + "/stderr";
        return ContainerLaunchContext.newInstance(
                files, Collections.singletonMap(RACK, rack(host)), Collections.singletonList(command), null, tokens(), null);
    }

    /** The rack of a machine, as MapReduce finds it: by this cluster's configuration. Empty where that does not say. */
    private String rack(String host) {
        String location = RackResolver.resolve(conf, host).getNetworkLocation();
        boolean isKnown = !location.equals(NetworkTopology.DEFAULT_RACK) && location.matches("(/[A-Za-z0-9_.-]+)+");
        return isKnown ? location.substring(1) : "";
    }

    /** The tokens by which a NodeManager fetches the files, without the one that makes an ApplicationMaster. */
    private static ByteBuffer tokens() throws Exception {
        Credentials credentials = new Credentials(UserGroupInformation.getCurrentUser().getCredentials());
        Credentials kept = new Credentials();
        for (Token<?> each : credentials.getAllTokens()) {
            if (!each.getKind().equals(AMRMTokenIdentifier.KIND_NAME)) {
                kept.addToken(each.getService(), each);
            }
        }
        DataOutputBuffer buffer = new DataOutputBuffer();
        kept.writeTokenStorageToStream(buffer);
        return ByteBuffer.wrap(buffer.getData(), 0, buffer.getLength());
    }

    /** The variable in which the client says where a staged file is: its URI, size and time, with blanks between. */
    static String variable(String file) {
        return "TFSUP_" + file.replace('.', '_').toUpperCase();
    }

    private static LocalResource staged(String file) {
        String[] parts = System.getenv(variable(file)).split(" ");
        return Client.resource(parts[0], Long.parseLong(parts[1]), Long.parseLong(parts[2]));
    }

    @Override
    public synchronized void onContainersCompleted(List<ContainerStatus> statuses) {
        for (ContainerStatus each : statuses) {
            if (outcome != null || !isAgents(each)) {
                continue;
            }
            int code = each.getExitStatus();
            say("the agent's container has ended with " + code + ": " + each.getDiagnostics());
            agent = null;
            if (AGAIN.contains(code)) {
                ask();
            } else if (code == 0) {
                end(FinalApplicationStatus.SUCCEEDED, "");
            } else {
                end(FinalApplicationStatus.FAILED, "the agent's container ended with " + code + ": " + each.getDiagnostics());
            }
        }
    }

    /**
     * Whether this is the agent's container, or was while there was no ApplicationMaster. An attempt's own container has the
     * number 1. A ResourceManager that has begun anew counts from 1 again in a later epoch, also for an attempt that goes on:
     * there the agent's may have it. Only the agent's ends with 0, as an ApplicationMaster does that at the end of all alone.
     * Any other end is taken for the ApplicationMaster's: another agent is better than the end of one that runs.
     */
    private boolean isAgents(ContainerStatus ended) {
        ContainerId id = ended.getContainerId();
        if (agent != null) {
            return id.equals(agent.getId());
        }
        long number = id.getContainerId() & ContainerId.CONTAINER_ID_BITMASK;
        boolean isLaterEpoch = id.getContainerId() > ContainerId.CONTAINER_ID_BITMASK;
        boolean isMasters = number == 1 && !(isLaterEpoch && ended.getExitStatus() == 0);
        return !isMasters && !id.getApplicationAttemptId().equals(own.getApplicationAttemptId());
    }

    @Override
    public synchronized void onNodesUpdated(List<NodeReport> nodes) {
        for (NodeReport each : nodes) {
            if (agent != null && each.getNodeId().equals(agent.getNodeId()) && each.getNodeState() == NodeState.DECOMMISSIONING) {
                warn("its node is decommissioned");
            }
        }
    }

    @Override
    public synchronized void onPreemptionMessageReceived(PreemptionMessage message) {
        Set<PreemptionContainer> wanted = new HashSet<>();
        if (message.getStrictContract() != null) {
            wanted.addAll(message.getStrictContract().getContainers());
        }
        if (message.getContract() != null) {
            wanted.addAll(message.getContract().getContainers());
        }
        for (PreemptionContainer each : wanted) {
            if (agent != null && each.getId().equals(agent.getId())) {
                warn("YARN wants its container back");
            }
        }
    }

    private void warn(String reason) {
        if (warned) {
            return;
        }
        warned = true;
        say("the agent is told to move: " + reason);
        try {
            bring("notice", staged("order.json"));
        } catch (Exception error) {
            // YARN repeats a notice of preemption with each heartbeat.
            warned = false;
            say("the agent could not be told: " + error);
        }
    }

    /** Bring a file into the directory of the agent's container. NMClient does that for containers of this attempt alone. */
    private void bring(String name, LocalResource file) throws Exception {
        ContainerManagementProtocolProxyData there = nodes.getProxy(agent.getNodeId().toString(), agent.getId());
        try {
            there.getContainerManagementProtocol().localize(
                    ResourceLocalizationRequest.newInstance(agent.getId(), Collections.singletonMap(name, file)));
        } finally {
            nodes.mayBeCloseProxy(there);
        }
    }

    @Override
    public void onShutdownRequest() {
        say("YARN has another ApplicationMaster for this application");
        Runtime.getRuntime().halt(1);
    }

    @Override
    public void onError(Throwable error) {
        error.printStackTrace();
        Runtime.getRuntime().halt(1);
    }

    @Override
    public void onContainersUpdated(List<UpdatedContainer> containers) {}

    @Override
    public float getProgress() {
        return 0;
    }

    private static void say(String text) {
        System.err.println("tfsup-master: " + text);
    }
}
