#!/bin/bash
# What a container of the image holdmq-stats runs. `driver` and `executor` come from Spark on Kubernetes, which gives
# the rest in variables (Spark's own entrypoint.sh is the only description of them); all else is a command of `holdmq`.
set -eu

by_spark='is set by Spark on Kubernetes; nobody else starts a driver or executor this way'

case ${1:-} in
    driver)
        shift
        : "${SPARK_DRIVER_BIND_ADDRESS:?$by_spark}"
        exec "$SPARK_HOME/bin/spark-submit" \
            --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
            --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
            --deploy-mode client "$@"
        ;;
    executor)
        options=()
        for ((number = 0; ; number++)); do
            name=SPARK_JAVA_OPT_$number
            [ -n "${!name+given}" ] || break
            options+=("${!name}")
        done
        exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}" \
            "-Xms${SPARK_EXECUTOR_MEMORY:?$by_spark}" "-Xmx$SPARK_EXECUTOR_MEMORY" \
            -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*:$PWD" \
            org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
            --driver-url "${SPARK_DRIVER_URL:?$by_spark}" \
            --executor-id "${SPARK_EXECUTOR_ID:?$by_spark}" \
            --cores "${SPARK_EXECUTOR_CORES:?$by_spark}" \
            --app-id "${SPARK_APPLICATION_ID:?$by_spark}" \
            --hostname "${SPARK_EXECUTOR_POD_IP:?$by_spark}" \
            --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:?$by_spark}" \
            --podName "${SPARK_EXECUTOR_POD_NAME:?$by_spark}"
        ;;
    *)
        exec holdmq "$@"
        ;;
esac
