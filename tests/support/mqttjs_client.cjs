// MQTT.js, the client of pages and of Node: subscribes to a topic, publishes three messages to it, says what came.
// node mqttjs_client.cjs DIRECTORY URL LEVEL TOPIC
const [directory, url, level, topic] = process.argv.slice(2);
const mqtt = require(`${directory}/node_modules/mqtt`);
const version = Number(level);
const properties = version === 5 ? { userProperties: { from: "js" } } : undefined;
const client = mqtt.connect(url, { protocolVersion: version, clientId: `js-${topic}`, reconnectPeriod: 0 });
const got = [];
const fail = (error) => {
    console.error(String(error));
    process.exit(1);
};
client.on("error", fail);
client.on("close", () => got.length === 3 || fail("closed"));
client.on("message", (name, payload, packet) => {
    const from = packet.properties?.userProperties?.from ?? null;
    got.push({ topic: name, payload: String(payload), qos: packet.qos, from });
    if (got.length === 3) client.end(false, {}, () => console.log(JSON.stringify(got)));
});
client.on("connect", () =>
    client.subscribe(topic, { qos: 2 }, (error) => {
        if (error) fail(error);
        for (const qos of [0, 1, 2])
            client.publish(topic, `js ${qos}`, { qos, properties }, (refusal) => refusal && fail(refusal));
    }),
);
