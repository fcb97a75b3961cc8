package tfsup.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import org.apache.hadoop.yarn.api.ApplicationClientProtocol;
import org.apache.hadoop.yarn.api.protocolrecords.GetApplicationReportRequest;
import org.apache.hadoop.yarn.api.protocolrecords.GetApplicationReportResponse;
import org.apache.hadoop.yarn.api.protocolrecords.GetApplicationsResponse;
import org.apache.hadoop.yarn.api.protocolrecords.GetContainersRequest;
import org.apache.hadoop.yarn.api.protocolrecords.GetContainersResponse;
import org.apache.hadoop.yarn.api.protocolrecords.SignalContainerRequest;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationReport;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerReport;
import org.apache.hadoop.yarn.api.records.ContainerState;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.PreemptionContainer;
import org.apache.hadoop.yarn.api.records.PreemptionMessage;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.StrictPreemptionContract;
import org.apache.hadoop.yarn.api.records.YarnApplicationState;
import org.apache.hadoop.yarn.client.api.impl.YarnClientImpl;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.util.Records;

/** Moments of Client and Master that a real YARN has too seldom for a test. Prints a line for each. */
public final class Moments {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final List<Integer> SIGNALLED = new ArrayList<>();

    public static void main(String[] containers) throws Exception {
        agentsEndBetweenALookAndAWord();
        for (String each : containers) {
            String[] parts = each.split("=");
            System.out.println(each + " " + outcomeAfter(parts[0], Integer.parseInt(parts[1])));
        }
        agentCannotBeTold();
        System.exit(0);
    }

    private static void agentsEndBetweenALookAndAWord() throws Exception {
        Client client = (Client) unsafe().allocateInstance(Client.class);
        set(client, "yarn", new Told());
        set(client, "told", new HashMap<>());
        set(client, "user", "olga");
        Method answer = Client.class.getDeclaredMethod("answer", JsonNode.class);
        answer.setAccessible(true);
        String ids = "\"ids\": [\"" + application(1) + "\", \"" + application(2) + "\"]";
        for (String verb : Arrays.asList("notify", "cancel", "list")) {
            SIGNALLED.clear();
            JsonNode rows = (JsonNode) answer.invoke(client,
                    JSON.readTree("{\"verb\": \"" + verb + "\", \"waiting_only\": false, " + ids + "}"));
            System.out.println(verb + " " + rows.size() + " " + SIGNALLED);
        }
    }

    private static FinalApplicationStatus outcomeAfter(String container, int code) throws Exception {
        Master master = master();
        master.onContainersCompleted(Collections.singletonList(ContainerStatus.newInstance(
                ContainerId.fromString(container), ContainerState.COMPLETE, "", code)));
        return (FinalApplicationStatus) field(Master.class, "outcome").get(master);
    }

    private static void agentCannotBeTold() throws Exception {
        Master master = master();
        ContainerId id = ContainerId.fromString("container_e02_1795705473932_0001_02_000002");
        Container agent = Container.newInstance(id, NodeId.newInstance("127.0.0.1", 1), "", null, Priority.newInstance(1), null);
        set(master, "agent", agent);
        PreemptionMessage message = Records.newRecord(PreemptionMessage.class);
        PreemptionContainer wanted = PreemptionContainer.newInstance(id);
        message.setStrictContract(StrictPreemptionContract.newInstance(Collections.singleton(wanted)));
        // There is no NodeManager that could be told.
        master.onPreemptionMessageReceived(message);
        master.onPreemptionMessageReceived(message);
    }

    private static Master master() throws Exception {
        java.lang.reflect.Constructor<Master> made =
                Master.class.getDeclaredConstructor(JsonNode.class, YarnConfiguration.class);
        made.setAccessible(true);
        return made.newInstance(JSON.readTree("{\"memory_mib\": 1, \"cpus\": 1, \"gpus\": 0}"), new YarnConfiguration());
    }

    private static ApplicationId application(int number) {
        return ApplicationId.newInstance(1795705473932L, number);
    }

    private static sun.misc.Unsafe unsafe() throws Exception {
        return (sun.misc.Unsafe) field(sun.misc.Unsafe.class, "theUnsafe").get(null);
    }

    private static Field field(Class<?> type, String name) throws Exception {
        Field found = type.getDeclaredField(name);
        found.setAccessible(true);
        return found;
    }

    private static void set(Object object, String name, Object value) throws Exception {
        field(object.getClass(), name).set(object, value);
    }

    /** YARN's client in front of a ResourceManager with two agents, of which the first ends after each look. */
    private static final class Told extends YarnClientImpl {
        Told() {
            rmClient = (ApplicationClientProtocol) Proxy.newProxyInstance(Moments.class.getClassLoader(),
                    new Class<?>[] {ApplicationClientProtocol.class}, (proxy, method, asked) -> reply(method.getName(), asked[0]));
        }

        private static Object reply(String method, Object asked) throws Exception {
            switch (method) {
                case "getApplications":
                    return GetApplicationsResponse.newInstance(Arrays.asList(report(application(1)), report(application(2))));
                case "getApplicationReport":
                    return GetApplicationReportResponse.newInstance(
                            report(((GetApplicationReportRequest) asked).getApplicationId()));
                case "getContainers":
                    return GetContainersResponse.newInstance(Collections.singletonList(
                            container(((GetContainersRequest) asked).getApplicationAttemptId())));
                case "signalToContainer":
                    ApplicationAttemptId attempt = ((SignalContainerRequest) asked).getContainerId().getApplicationAttemptId();
                    if (attempt.getApplicationId().equals(application(1))) {
                        throw new YarnException("Trying to signal an absent container");
                    }
                    SIGNALLED.add(attempt.getApplicationId().getId());
                    return null;
                default:
                    return null;
            }
        }

        private static ApplicationReport report(ApplicationId id) {
            ApplicationReport report = Records.newRecord(ApplicationReport.class);
            report.setApplicationId(id);
            report.setCurrentApplicationAttemptId(ApplicationAttemptId.newInstance(id, 1));
            report.setName(Client.PREFIX + "digits");
            report.setUser("olga");
            report.setQueue("root.default");
            report.setYarnApplicationState(YarnApplicationState.RUNNING);
            report.setFinalApplicationStatus(FinalApplicationStatus.UNDEFINED);
            report.setApplicationTags(new HashSet<>(Collections.singleton("notice-60")));
            report.setApplicationTimeouts(new HashMap<>());
            return report;
        }

        private static ContainerReport container(ApplicationAttemptId attempt) {
            ContainerReport report = Records.newRecord(ContainerReport.class);
            report.setContainerId(ContainerId.newContainerId(attempt, 2));
            report.setPriority(Priority.newInstance(Master.PRIORITY));
            report.setAssignedNode(NodeId.newInstance("127.0.0.2", 1));
            report.setContainerState(ContainerState.RUNNING);
            return report;
        }
    }
}
