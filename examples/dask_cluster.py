"""The same run on a Dask cluster: pass the client's executor. Here a cluster of two processes on this machine."""

import bestpolicy as bp

if __name__ == "__main__":
    from distributed import Client, LocalCluster

    simulator = bp.ExactSimulator(bp.instances.load("two-state"))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        result = bp.identify(
            simulator,
            epsilon=0.1,
            delta=0.1,
            algorithm="tight",
            seed=0,
            executor=client.get_executor(),
            calls_per_query=50,
        )
    print(result.explanation)
